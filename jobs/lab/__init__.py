"""An emulated cluster on one machine: namespaces for nodes, tbf for wires."""
