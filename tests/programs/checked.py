"""scikit-learn's checks of one estimator, ``module.Name``: prints how many, and those that fail."""

import sys
import warnings

import jax
from sklearn.utils.estimator_checks import check_estimator

import jdaso.array as ja

jax.config.update("jax_enable_x64", True)
warnings.simplefilter("ignore")
module, name = sys.argv[1].split(".")
found = check_estimator(getattr(getattr(ja, module), name)(), on_skip=None, on_fail=None)
failed = sorted({one["check_name"] for one in found if one["status"] == "failed"})
print(len(found), *failed)
