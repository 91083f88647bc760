// Refreshes a visible page, and keeps open details, focus and scroll positions.
(() => {
  "use strict";
  const EVERY = 10000;

  const current = document.querySelector("nav a[aria-current]");
  const strip = current && current.closest("nav");
  if (strip && strip.scrollWidth > strip.clientWidth) {
    strip.scrollLeft = current.offsetLeft - strip.clientWidth / 3;
  }

  const main = document.querySelector("main[data-live]");
  if (!main) return;

  const button = document.createElement("button");
  button.type = "button";
  let runs = true;
  button.textContent = "Pause";
  const tell = () => button.setAttribute("aria-pressed", String(!runs));
  const foot = () => main.querySelector("footer p").append(button);
  button.addEventListener("click", () => {
    runs = !runs;
    tell();
    if (runs) again();
  });
  tell();
  foot();

  const open = () => new Set([...main.querySelectorAll("details[open]")].map((one) => one.id));

  const replace = (fresh) => {
    const opened = open();
    for (const one of main.querySelectorAll(":scope > [id]")) {
      const other = fresh.getElementById(one.id);
      // A section that has the focus stays as it is until the focus leaves it.
      if (!other || one.contains(document.activeElement)) continue;
      for (const each of other.querySelectorAll("details")) each.open = opened.has(each.id);
      const scrolled = [...one.querySelectorAll(".scroll")].map((each) => [each.scrollLeft, each.scrollTop]);
      one.replaceWith(other);
      [...other.querySelectorAll(".scroll")].forEach((each, at) => {
        if (scrolled[at]) [each.scrollLeft, each.scrollTop] = scrolled[at];
      });
    }
    const had = document.activeElement === button;
    const time = fresh.querySelector("footer time");
    if (time) main.querySelector("footer time").replaceWith(time);
    if (had) button.focus();
  };

  const again = async () => {
    if (!runs || document.hidden) return;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, credentials: "same-origin" });
      if (answer.redirected) {
        location.reload();
        return;
      }
      if (answer.ok) replace(new DOMParser().parseFromString(await answer.text(), "text/html"));
    } catch {
      // The gateway is restarting, or the network is down: try again at the next interval.
    }
  };

  setInterval(again, EVERY);
  document.addEventListener("visibilitychange", again);
})();
