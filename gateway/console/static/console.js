// Live without a reload: fetch this page anew and put in the parts that changed. Without scripts the pages work as they are.
"use strict";
(() => {
  const EVERY_MS = 3000, SLOWEST_MS = 60000;
  let wait = EVERY_MS;

  // A part in which somebody types, has ticked a box or selects text is left alone until they are done.
  const busy = (part) =>
    part.contains(document.activeElement) && document.activeElement !== document.body ||
    part.querySelector("input:checked") !== null ||
    (!getSelection().isCollapsed && part.contains(getSelection().anchorNode));

  const freshen = async () => {
    const answer = await fetch(location.href, { headers: { "x-live": "1" }, redirect: "manual" });
    if (answer.type === "opaqueredirect") { location.reload(); return; }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!answer.ok || page.querySelector("[data-live]") === null) throw new Error("no page");
    for (const part of document.querySelectorAll("[data-live]")) {
      const now = page.getElementById(part.id);
      if (now === null || now.innerHTML === part.innerHTML || busy(part)) continue;
      part.replaceChildren(...document.importNode(now, true).childNodes);
    }
    say("");
  };

  const say = (text) => {
    const line = document.getElementById("connection");
    if (line !== null && line.textContent !== text) line.textContent = text;
  };

  const loop = async () => {
    if (document.visibilityState === "visible") {
      try { await freshen(); wait = EVERY_MS; } catch {
        say("The gateway does not answer; this page shows what was last known.");
        wait = Math.min(wait * 2, SLOWEST_MS);
      }
    }
    setTimeout(loop, wait);
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-all]");
    if (button === null) return;
    const boxes = button.form.querySelectorAll("input[type=checkbox][name=id]");
    const on = [...boxes].some((box) => !box.checked);
    for (const box of boxes) box.checked = on;
  });

  if (document.querySelector("[data-live]") !== null) setTimeout(loop, wait);
})();
