"use strict";
// The slider: figures of a number of ranks, all of them computed and written when the page was made.
const slider = document.getElementById("ranks");
if (slider) {
  const lines = JSON.parse(document.getElementById("balance-lines").textContent);
  const mark = document.getElementById("ranks-mark");
  const show = () => {
    const at = Number(slider.value);
    const line = lines[at];
    for (const name of Object.keys(line)) {
      document.getElementById("balance-" + name).textContent = line[name];
    }
    slider.setAttribute("aria-valuetext", line.ranks);
    const x = lines.length > 1 ? (100 * at) / (lines.length - 1) : 0;
    mark.setAttribute("x1", x);
    mark.setAttribute("x2", x);
  };
  slider.addEventListener("input", show);
  show();
}
