"""The door of checkpoints for packages that cut a state into parts, such as `pipeline`.

They import nothing else from this package but its public names (a test asserts this). Only names
that such a package needs belong here, and no code.
"""

from ._facts import check_facts as check_facts
from ._facts import take_measured as take_measured
from ._files import DamagedError as DamagedError
from ._files import Manifest as Manifest
from ._files import plain_dtype as plain_dtype
from ._folder import Folder as Folder
from ._parts import Save as Save
from ._resize import NEVER_STARTED as NEVER_STARTED
from ._resize import read_resized as read_resized
from ._restore import restore as restore
from ._state import from_host as from_host
from ._state import is_flight as is_flight
from ._state import values_of as values_of
from ._together import is_first as is_first
from ._together import of_first as of_first
from ._together import require_seen as require_seen
from ._together import together as together
