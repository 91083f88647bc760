"use strict";
(() => {
  const form = document.querySelector(".filter");
  if (!form) return;
  const groups = document.getElementById("groups");
  const nothing = document.querySelector(".nothing");
  const matching = form.querySelector(".matching");
  const text = document.getElementById("text");
  const operation = document.getElementById("operation");
  const kinds = [...form.querySelectorAll(".kinds input")];
  const findings = [...groups.querySelectorAll(".finding")];
  const byOperation = [...groups.children];
  const words = new Map(findings.map((one) => [one, one.textContent.toLowerCase().replace(/\s+/g, " ")]));
  const homes = new Map(findings.map((one) => [one, one.parentElement]));

  const byField = () => {
    const sections = new Map();
    for (const one of findings) {
      const field = one.dataset.field;
      if (!sections.has(field)) {
        const section = document.createElement("section");
        section.className = "group";
        const title = section.appendChild(document.createElement("h3"));
        title.appendChild(document.createElement("code")).textContent = field;
        sections.set(field, section);
      }
      sections.get(field).append(one);
    }
    return [...sections].sort(([a], [b]) => a.localeCompare(b)).map(([, section]) => section);
  };

  const group = (by) => {
    groups.classList.toggle("by-field", by === "field");
    if (by === "field") {
      groups.replaceChildren(...byField());
    } else {
      for (const one of findings) homes.get(one).append(one);
      groups.replaceChildren(...byOperation);
    }
    filter();
  };

  const filter = () => {
    const wanted = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const of = kinds.filter((one) => one.checked).map((one) => one.value);
    let shown = 0;
    for (const one of findings) {
      const fits =
        (!of.length || of.includes(one.dataset.kind)) &&
        (!operation.value || operation.value === one.dataset.operation) &&
        wanted.every((word) => words.get(one).includes(word));
      one.hidden = !fits;
      shown += fits;
    }
    for (const section of groups.children) {
      section.hidden = ![...section.querySelectorAll(".finding")].some((one) => !one.hidden);
    }
    nothing.hidden = shown > 0;
    matching.textContent =
      shown === findings.length
        ? `${shown} ${shown === 1 ? "difference" : "differences"}`
        : `${shown} of ${findings.length} differences`;
  };

  const openAll = (open) => {
    for (const one of findings) if (!one.hidden) one.open = open;
  };

  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const one of form.querySelectorAll(".by input")) {
    one.addEventListener("change", () => group(one.value));
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

  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const one of closed) one.open = true;
  });
  addEventListener("afterprint", () => {
    for (const one of closed) one.open = false;
  });

  form.hidden = false;
  filter();
})();
