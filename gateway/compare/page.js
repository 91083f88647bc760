"use strict";
(() => {
  const form = document.querySelector(".filter");
  if (!form) return;
  const groups = document.getElementById("groups");
  const noMatch = document.querySelector(".nothing");
  const matching = form.querySelector(".matching");
  const text = document.getElementById("text");
  const operation = document.getElementById("operation");
  const kinds = [...form.querySelectorAll(".kinds input")];
  const findings = [...groups.querySelectorAll(".finding")];
  const byOperation = [...groups.children];
  const searchTexts = new Map(
    findings.map((finding) => [finding, finding.textContent.toLowerCase().replace(/\s+/g, " ")]),
  );
  const sectionOf = new Map(findings.map((finding) => [finding, finding.parentElement]));

  const byField = () => {
    const sections = new Map();
    for (const finding of findings) {
      const field = finding.dataset.field;
      if (!sections.has(field)) {
        const section = document.createElement("section");
        section.className = "group";
        const title = section.appendChild(document.createElement("h3"));
        title.appendChild(document.createElement("code")).textContent = field;
        sections.set(field, section);
      }
      sections.get(field).append(finding);
    }
    return [...sections].sort(([a], [b]) => a.localeCompare(b)).map(([, section]) => section);
  };

  const group = (by) => {
    groups.classList.toggle("by-field", by === "field");
    if (by === "field") {
      groups.replaceChildren(...byField());
    } else {
      for (const finding of findings) sectionOf.get(finding).append(finding);
      groups.replaceChildren(...byOperation);
    }
    filter();
  };

  const filter = () => {
    const wanted = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const chosenKinds = kinds.filter((box) => box.checked).map((box) => box.value);
    let shown = 0;
    for (const finding of findings) {
      const matches =
        (!chosenKinds.length || chosenKinds.includes(finding.dataset.kind)) &&
        (!operation.value || operation.value === finding.dataset.operation) &&
        wanted.every((word) => searchTexts.get(finding).includes(word));
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

  const openAll = (open) => {
    for (const finding of findings) if (!finding.hidden) finding.open = open;
  };

  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const radio of form.querySelectorAll(".by input")) {
    radio.addEventListener("change", () => group(radio.value));
  }
  document.getElementById("open").addEventListener("click", () => openAll(true));
  document.getElementById("close").addEventListener("click", () => openAll(false));

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
