// Refreshes a visible page, and keeps open details and scroll positions.
(() => {
  "use strict";
  const current = document.querySelector("nav a[aria-current]");
  if (current) current.scrollIntoView({ block: "nearest", inline: "center" });

  const main = document.querySelector("main[data-live]");
  if (!main) return;

  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Pause";
  button.ariaPressed = "false";
  button.addEventListener("click", () => {
    button.ariaPressed = button.ariaPressed === "true" ? "false" : "true";
  });
  main.querySelector("footer p").append(button);

  const refresh = async () => {
    if (button.ariaPressed === "true" || document.hidden) return;
    // The gateway may be restarting, or the network down: it tries again at the next interval.
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } }).catch(() => null);
    if (!answer || !answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const section of main.querySelectorAll(":scope > [id]")) {
      const other = fresh.getElementById(section.id);
      // A section that has the focus stays as it is until the focus leaves it.
      if (!other || section.contains(document.activeElement)) continue;
      const scrolled = [...section.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
      for (const each of section.querySelectorAll("details[open]")) fresh.getElementById(each.id)?.setAttribute("open", "");
      section.replaceWith(other);
      other.querySelectorAll(".scroll").forEach((each, at) => (each.scrollLeft = scrolled[at]));
    }
    main.querySelector("footer time").replaceWith(fresh.querySelector("footer time"));
  };
  setInterval(refresh, 10000);
})();
