"""Sessions: a node's part in a run; all that it needs is opened and closed here.

Rule 1: `session` opens and closes the parts, and passes calls on; each part is a file of its own,
which does not depend on the session.
Rule 2: steps, exchanges and optimizers belong above. `optimizers` holds their records, and gives no
meaning to them; `hooks` makes the calls asked for. Others use the methods of both, not their dicts.
"""

from .optimizers import Completion as Completion
from .optimizers import Held as Held
from .session import Session as Session
