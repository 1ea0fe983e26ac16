"""What breaks in a pod: causes with their rates, how often a slice meets them, what fits then."""

from tpusim.failures.availability import Availability as Availability
from tpusim.failures.availability import availability as availability
from tpusim.failures.causes import CAUSES as CAUSES
from tpusim.failures.causes import Cause as Cause
from tpusim.failures.exposure import failures_per_second as failures_per_second
from tpusim.failures.exposure import made_of_cubes as made_of_cubes
from tpusim.failures.exposure import mean_time_to_failure as mean_time_to_failure
from tpusim.failures.exposure import unit_chips as unit_chips
from tpusim.failures.exposure import units_of as units_of
from tpusim.failures.failures import Failures as Failures
from tpusim.failures.pod_question import PodQuestion as PodQuestion
