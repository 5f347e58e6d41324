"""List the packages: the five rooms reach ``closeranks`` through links."""

from __future__ import annotations

from setuptools import find_packages, setup

setup(
    packages=find_packages(include=["closeranks", "closeranks.*"]),
    package_data={"closeranks": ["py.typed"], "closeranks.jobs": ["*.sbatch"]},
)
