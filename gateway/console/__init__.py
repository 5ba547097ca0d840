"""What operators see: the API, the metrics and the pages of the admin bind.

The rule of this package: nothing that it shows comes from a delivery. It knows records, dispatches, counts, times and the
configuration; URLs and scope values of projected events stay in the store.
"""

from gateway.console.site import admin_app

__all__ = ["admin_app"]
