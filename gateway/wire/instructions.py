"""What to do in a provider's console where its API does not register webhooks: exact text, values filled in, no secret."""

import json
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from gateway.profiles import Source
from gateway.wire.types import Want

NOTHING = """Nothing is enrolled for {source} yet, so the steps cannot name your events. First: gateway enroll. Then print them again.

"""
SLACK_NAME = 35  # https://docs.slack.dev/reference/app-manifest


def instructions(want: Want, source: Source, references: Sequence[str]) -> str:
    """Return the steps for one source. `references` are its secrets' references: where to put what the provider shows."""
    write = WRITERS.get(source.profile.name, _any)
    steps = write(want, source, references[0] if references else "").strip() + "\n"
    return steps if want.events() else NOTHING.format(source=want.source) + steps


def _listed(items: Sequence[str], indent: int) -> str:
    """A YAML list's value, on lines of its own below its key; without items `[]`, behind the key."""
    return "".join(f"\n{' ' * indent}- {json.dumps(item)}" for item in items) or " []"


def slack(want: Want, source: Source, reference: str) -> str:
    """https://docs.slack.dev/reference/app-manifest."""
    scopes = {"app_mention": "app_mentions:read", "message.channels": "channels:history", "message.im": "im:history"}
    wanted = sorted({scopes[name] for name in want.events() if name in scopes})
    app = ", ".join(source.identity.get("app", ()))
    return f"""
1. https://api.slack.com/apps -> app {app} -> App Manifest, and set these members (keep the others):

display_information:
  name: {json.dumps(want.name[:SLACK_NAME])}
features:
  bot_user:
    display_name: {json.dumps(want.source)}
oauth_config:
  scopes:
    bot:{_listed(wanted or ["app_mentions:read"], 6)}
settings:
  event_subscriptions:
    request_url: {want.url}
    bot_events:{_listed(want.events(), 6)}
  org_deploy_enabled: false
  socket_mode_enabled: false

2. Save. Slack posts a signed challenge to the request URL at once: the gateway has to be up, with the signing secret.
3. Basic Information -> Signing Secret goes into {reference}.
4. Install the app to the workspace {", ".join(source.identity.get("workspace", ()))} and invite it to the channels.
"""


def forge(want: Want, source: Source, _reference: str) -> str:
    """https://developer.atlassian.com/platform/forge/remote/sending-product-events/."""
    parts = urlsplit(want.url)
    app = next(iter(source.identity.get("app", ())), "ari:cloud:ecosystem::app/...")
    return f"""
1. In the app's manifest.yml (remove what it has under these keys):

app:
  id: {app}
modules:
  trigger:
    - key: gateway-trigger
      endpoint: gateway-endpoint
      events:{_listed(want.events(), 8)}
  endpoint:
    - key: gateway-endpoint
      remote: gateway-remote
      route:
        path: {parts.path}
remotes:
  - key: gateway-remote
    baseUrl: {parts.scheme}://{parts.netloc}
permissions:
  scopes:
    - read:confluence-content.summary

2. forge deploy --environment {_one(source, "environment", "production").lower()}
3. forge install --upgrade --environment {_one(source, "environment", "production").lower()}
   The installation's ARI ({_one(source, "installation", "see: forge install list")}) has to stand in the source's identity;
   a reinstall makes a new one. There is no secret: the token is proved with Atlassian's published keys.
"""


def sentry(want: Want, source: Source, reference: str) -> str:
    """https://docs.sentry.io/organization/integrations/integration-platform/internal-integration/."""
    resources = sorted({name.partition(".")[0] for name in want.events()})
    boxes = {"issue": "Webhooks: issue", "error": "Webhooks: error", "event_alert": "Alert Rule Action: on"}
    ticks = "\n".join(f"   - {boxes.get(name, name)}" for name in resources)
    return f"""
1. Sentry -> Settings -> Custom Integrations -> Create New Integration -> Internal Integration
   Name: {want.name}
   Webhook URL: {want.url}
{ticks}
   Permissions: Issue & Event: Read (the webhooks need it)
2. Save. "Client Secret" goes into {reference}.
3. The installation's uuid goes into identity.installation, now: {_one(source, "installation", "missing")}
   Sentry's API shows it: GET https://sentry.io/api/0/organizations/ORGANIZATION/sentry-app-installations/
{"4. In each alert rule, add the action: Send a notification via " + want.name if "event_alert" in resources else ""}
"""


def servicenow(want: Want, source: Source, reference: str) -> str:
    """https://www.servicenow.com/docs/r/api-reference/server-api-reference/c_GlideCertificateEncryptionAPI.html.

    Key and MAC are base64, as Standard Webhooks has them. docs/providers/servicenow.md shows the same script.
    """
    instance = _one(source, "instance", "acme.service-now.com")
    tables = sorted({str(v) for one in want.subscriptions for t in _tables(one.triggers) for v in t}) or ["incident"]
    url = json.dumps(want.url)
    return f"""
1. https://{instance} -> System Properties -> sys_properties.list -> New
   Name: gateway.{want.source}.key     Type: password2
   Value: the base64 key of {reference}, without its "whsec_".
2. Business Rules -> New, once for each table: {", ".join(tables)}
   When: async    Insert, Update: on    Advanced: on    Script:

(function executeRule(current, previous) {{
  var body = JSON.stringify({{
    type: "record.updated",
    timestamp: new GlideDateTime().getValue().replace(" ", "T") + "Z",
    data: {{
      instance: {json.dumps(instance)},
      table: current.getTableName(),
      sys_id: current.getUniqueValue(),
      sys_mod_count: parseInt(current.getValue("sys_mod_count"), 10)
    }}
  }});
  // the same id for every attempt of one change, so that a repeated call is a duplicate
  var id = current.getUniqueValue() + "-" + current.getValue("sys_mod_count");
  var time = String(Math.floor(new GlideDateTime().getNumericValue() / 1000));
  var key = gs.getProperty("gateway.{want.source}.key");
  // in a scoped application: new CertificateEncryption()
  var mac = new GlideCertificateEncryption().generateMac(key, "HmacSHA256", id + "." + time + "." + body);
  var request = new sn_ws.RESTMessageV2();
  request.setHttpMethod("POST");
  request.setEndpoint({url});
  request.setRequestHeader("Content-Type", "application/json");
  request.setRequestHeader("webhook-id", id);
  request.setRequestHeader("webhook-timestamp", time);
  request.setRequestHeader("webhook-signature", "v1," + mac);
  request.setRequestBody(body);
  request.executeAsync();
}})(current, previous);

3. Change a record of that table, then: gateway deliveries --source {want.source}
"""


def _tables(triggers: object) -> list[list[str]]:
    """The tables that the enrolled triggers match, read from their names (`incident-updated`)."""
    known = {"incident-updated": "incident", "requested-item-updated": "sc_req_item"}
    return [[known[name] for name in triggers if name in known]] if isinstance(triggers, dict) else []


def _any(want: Want, source: Source, reference: str) -> str:
    """Every other provider: where, what, and the secret's place."""
    profile = source.profile
    events = "\n".join(f"   - {name}" for name in want.events() or ["none yet"])
    return f"""
1. Open the webhook settings of {profile.title}: {profile.docs[0]}
2. URL: {want.url}
   Content type: application/json, where there is a choice
   Events:
{events}
3. Secret: {reference or "none, the provider's published keys prove its tokens"}. {profile.secret_help}
"""


def _one(source: Source, name: str, default: str) -> str:
    return next(iter(source.identity.get(name, ())), default)


WRITERS: dict[str, Callable[[Want, Source, str], str]] = {
    "slack": slack,
    "forge": forge,
    "sentry": sentry,
    "servicenow": servicenow,
}
