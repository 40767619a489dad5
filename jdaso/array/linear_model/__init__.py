"""Linear models, with scikit-learn's interface."""

from ._lasso import Lasso as Lasso
from ._lasso import lasso as lasso
from ._lasso import lasso_path as lasso_path
