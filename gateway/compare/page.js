"use strict";
(() => {
  const form = document.querySelector(".filter");
  if (!form) return;
  const groups = document.getElementById("groups");
  const noMatch = document.querySelector(".nothing");
  const matching = form.querySelector(".matching");
  const text = document.getElementById("text");
  const findings = [...groups.querySelectorAll(".finding")];
  const searchTexts = new Map(
    findings.map((finding) => [finding, finding.textContent.toLowerCase().replace(/\s+/g, " ")]),
  );

  const filter = () => {
    const wanted = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const finding of findings) {
      const matches = wanted.every((word) => searchTexts.get(finding).includes(word));
      finding.hidden = !matches;
      shown += matches;
    }
    for (const section of groups.children) {
      section.hidden = ![...section.querySelectorAll(".finding")].some((finding) => !finding.hidden);
    }
    noMatch.hidden = shown > 0;
    matching.textContent =
      shown === findings.length
        ? `${shown} ${shown === 1 ? "difference" : "differences"}`
        : `${shown} of ${findings.length} differences`;
  };

  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.matches("input[type=search], select, textarea");
    if (event.key === "/" && !typing) {
      event.preventDefault();
      text.focus();
      text.select();
    } else if (event.key === "Escape" && event.target === text) {
      text.value = "";
      filter();
      text.blur();
    }
  });

  // Print everything: a reader of paper cannot open what is closed.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const details of closed) details.open = true;
  });
  addEventListener("afterprint", () => {
    for (const details of closed) details.open = false;
  });

  form.hidden = false;
  filter();
})();
