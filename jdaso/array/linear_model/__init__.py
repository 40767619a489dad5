"""Linear models, with scikit-learn's interface.

May live here: models that are linear in the features, and how they are fitted. May not: classifiers
by neighbors or probabilities, and MPI.
"""

from ._lasso import Lasso as Lasso
from ._lasso import lasso as lasso
from ._lasso import lasso_path as lasso_path
