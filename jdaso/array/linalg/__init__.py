"""Linear algebra: norms, and factors of tall matrices."""

from .._products import matmul as matmul
from .._products import matrix_transpose as matrix_transpose
from .._products import tensordot as tensordot
from .._products import vecdot as vecdot
from .._scan import tril as tril
from .._scan import triu as triu
from ._norms import norm as norm
from ._norms import trace as trace
from ._norms import vector_norm as vector_norm
from ._tall import QR as QR
from ._tall import SVD as SVD
from ._tall import lstsq as lstsq
from ._tall import qr as qr
from ._tall import svd as svd
from ._tall import svdvals as svdvals
