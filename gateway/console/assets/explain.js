// Draws a line from each field of the legacy request to the fields made from it.
(() => {
  "use strict";
  const sides = document.querySelector(".two-sides");
  if (!sides) return;
  const drawing = sides.querySelector(".lines");
  const sent = new Map([...sides.querySelectorAll("[data-sent]")].map((one) => [one.dataset.sent, one]));
  const given = [...sides.querySelectorAll("[data-given]")];

  const draw = () => {
    const home = sides.getBoundingClientRect();
    drawing.replaceChildren(
      ...given.flatMap((to) => {
        const from = sent.get(to.dataset.given);
        if (!from) return [];
        const a = from.getBoundingClientRect();
        const b = to.getBoundingClientRect();
        const [x1, y1] = [a.right - home.left, a.top + a.height / 2 - home.top];
        const [x2, y2] = [b.left - home.left, b.top + b.height / 2 - home.top];
        const bend = (x2 - x1) / 2;
        const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
        line.setAttribute("d", `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`);
        line.dataset.number = to.dataset.given;
        return [line];
      }),
    );
  };

  const light = (number) => {
    for (const one of sides.querySelectorAll("[data-sent], [data-given], path[data-number]")) {
      const its = one.dataset.sent || one.dataset.given || one.dataset.number;
      one.classList.toggle("lit", number !== undefined && its === number);
    }
  };
  const numberOf = (target) => {
    const one = target.closest("[data-sent], [data-given]");
    return one ? one.dataset.sent || one.dataset.given : undefined;
  };
  sides.addEventListener("pointerover", (event) => light(numberOf(event.target)));
  sides.addEventListener("pointerleave", () => light());
  sides.addEventListener("focusin", (event) => light(numberOf(event.target)));
  sides.addEventListener("focusout", () => light());

  new ResizeObserver(draw).observe(sides);
  draw();
})();
