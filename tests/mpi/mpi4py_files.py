"""Which of mpi4py's tests are run with communicators of ours.

All but ``test_ulfm``: to revoke one of ours ends its family, and what is called
then raises `closeranks.Revoked`, see docs/faults.md.  And but ``test_util_dtlib``:
half a minute of datatypes, without a communicator.
"""

from __future__ import annotations

FILES = (
    "test_address", "test_attributes", "test_buffer", "test_cco_buf", "test_cco_buf_inter",
    "test_cco_nb_buf", "test_cco_nb_vec", "test_cco_ngh_buf", "test_cco_ngh_obj", "test_cco_obj",
    "test_cco_obj_inter", "test_cco_pr_buf", "test_cco_pr_ngh_buf", "test_cco_pr_vec",
    "test_cco_vec", "test_cco_vec_inter", "test_cffi", "test_comm", "test_comm_inter",
    "test_comm_topo", "test_ctypes", "test_datatype", "test_doc", "test_dynproc", "test_environ",
    "test_errhandler", "test_errorcode", "test_exceptions", "test_file", "test_grequest",
    "test_group", "test_handle", "test_info", "test_io", "test_mpiabi", "test_mpiapi",
    "test_mpimem", "test_msgspec", "test_msgzero", "test_objmodel", "test_op", "test_p2p_buf",
    "test_p2p_buf_matched", "test_p2p_buf_part", "test_p2p_obj", "test_p2p_obj_matched",
    "test_pack", "test_package", "test_pickle", "test_request", "test_rma", "test_rma_nb",
    "test_session", "test_spawn", "test_status", "test_subclass", "test_threads", "test_toplevel",
    "test_util_pkl5", "test_util_pool", "test_util_sync",
    "test_win",
)  # fmt: skip
#: Tests that fail with any other communicator than the predefined ones.
NOT = (
    "test_comm.TestCommSelf.testPickle",
    "test_comm.TestCommWorld.testPickle",
    "test_exceptions.TestExcComm.testFreeSelf",
    "test_exceptions.TestExcComm.testFreeWorld",
    "test_objmodel.TestObjModel.testCAPI",
    "test_objmodel.TestObjModel.testHandle",
    "test_objmodel.TestObjModel.testSafeFreeConstant",
)
#: Those of Open MPI, which has no such attributes of duplicates.
NOT_OPEN_MPI = (
    "test_environ.TestWorldAttrs.testLastUsedCode",
    "test_errorcode.TestErrorCode.testAddErrorClassCodeString",
)
#: Those of MPICH, whose handles of duplicates are negative numbers.
NOT_MPICH = ("test_ctypes.TestCTYPES.testHandleValue",)
#: Those that fail with MPICH without us, too: it was built without Fortran.
FAIL_WITH_MPICH = ("test_mpiabi.TestMPIABI.testGetFortranInfo",)

#: Tests that read a table of locks which mpi4py's own lower-case calls have, and ours do not.
PRIVATE = tuple(
    f"test_p2p_obj.TestP2PObj{name}.testCommLock"
    for name in ("Self", "World", "SelfDup", "WorldDup")
)
#: Why they are left out.
WANTS, READS = "wants the predefined communicator itself", "reads a private table of mpi4py's"
FAILS = "fails without us, too: MPICH was built without Fortran"


def left_out(library: str) -> dict[str, str]:
    """The tests that are left out with communicators of ours, and why."""
    is_open_mpi = library == "Open MPI"
    wants = NOT + (NOT_OPEN_MPI if is_open_mpi else NOT_MPICH)
    fails = () if is_open_mpi else FAIL_WITH_MPICH
    return dict.fromkeys(wants, WANTS) | dict.fromkeys(fails, FAILS) | dict.fromkeys(PRIVATE, READS)
