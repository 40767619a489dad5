"""Linear algebra, with the names of the array API standard, and HeAT's cg, lanczos and rsvd.

May live here, by the form of the matrices: `_tall` (QR and singular values of those with many
rows), `_solve` (square ones that no node holds), `_whole` (those that one node can hold), `_krylov`
and `_iterations` (using only products), `_norms`, `_diagonals`; `_stacks` takes many at a time.
May not: estimators, and MPI (`_world` has the operations between nodes).
"""

from .._products import matmul as matmul
from .._products import matrix_transpose as matrix_transpose
from .._products import tensordot as tensordot
from .._products import vecdot as vecdot
from .._scan import tril as tril
from .._scan import triu as triu
from ._diagonals import cross as cross
from ._diagonals import diagonal as diagonal
from ._diagonals import matrix_power as matrix_power
from ._diagonals import outer as outer
from ._diagonals import trace as trace
from ._iterations import cg as cg
from ._iterations import lanczos as lanczos
from ._iterations import rsvd as rsvd
from ._norms import matrix_norm as matrix_norm
from ._norms import norm as norm
from ._norms import vector_norm as vector_norm
from ._solve import cholesky as cholesky
from ._solve import inv as inv
from ._solve import solve as solve
from ._tall import QR as QR
from ._tall import SVD as SVD
from ._tall import LeastSquares as LeastSquares
from ._tall import lstsq as lstsq
from ._tall import qr as qr
from ._tall import svd as svd
from ._tall import svdvals as svdvals
from ._whole import Determinant as Determinant
from ._whole import Eigen as Eigen
from ._whole import det as det
from ._whole import eig as eig
from ._whole import eigh as eigh
from ._whole import eigvals as eigvals
from ._whole import eigvalsh as eigvalsh
from ._whole import matrix_rank as matrix_rank
from ._whole import pinv as pinv
from ._whole import slogdet as slogdet
