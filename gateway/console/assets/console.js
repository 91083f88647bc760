// Asks a page that is looked at for its figures anew, and keeps what is open, focused and scrolled.
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
      // What somebody is in the middle of stays as it is until they have left it.
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
      // The gateway is being started anew, or the network is gone: the next time.
    }
  };

  setInterval(again, EVERY);
  document.addEventListener("visibilitychange", again);
})();
