// Plays recorded texts: shows what was written by a moment, and what that makes a second.
"use strict";
(() => {
  const player = document.getElementById("player");
  const find = (selector) => player.querySelector(selector);
  const play = find(".play"), clock = find(".clock"), time = find(".time");
  const heats = [...player.querySelectorAll(".heat")];
  const SECONDS = 12; // that the slowest text takes to play
  let heat = heats[0], started = null, from = 0;

  const end = () => Number(heat.dataset.seconds);
  const moment = () => (clock.value / clock.max) * end();

  function draw() {
    const now = moment();
    time.textContent = now.toFixed(2) + " s";
    for (const lane of heat.querySelectorAll(".lane")) {
      const pieces = [...lane.querySelectorAll("[data-at]")];
      const last = Number(pieces.at(-1).dataset.at);
      let count = 0, all = 0, newest = null;
      for (const piece of pieces) {
        const there = piece === pieces[0] || Number(piece.dataset.at) <= now;
        piece.classList.toggle("later", !there);
        piece.classList.remove("newest");
        if (there) { newest = piece; count += Number(piece.dataset.tokens); }
        all += Number(piece.dataset.tokens);
      }
      const done = now >= last, spent = Math.min(now, last);
      if (!done) newest.classList.add("newest");
      lane.classList.toggle("done", done);
      lane.querySelector(".bar i").style.width = (100 * count) / all + "%";
      lane.querySelector(".count").textContent = count + " tokens";
      const speed = spent > 0 ? Math.round((count - 1) / spent) : 0;
      lane.querySelector(".speed").textContent =
        (done ? "✓ " : "") + speed + " tokens a second";
    }
  }

  function label(text) {
    play.textContent = text;
    play.setAttribute("aria-label", text.slice(2) + " the race");
  }

  function step(at) {
    if (started === null) return;
    const share = from + (at - started) / (1000 * SECONDS);
    clock.value = Math.min(1, share) * clock.max;
    draw();
    if (share < 1) requestAnimationFrame(step);
    else stop();
  }

  function start() {
    from = clock.value >= clock.max ? 0 : clock.value / clock.max;
    started = performance.now();
    label("❚❚ Pause");
    requestAnimationFrame(step);
  }

  function stop() {
    started = null;
    label("▶ Play");
  }

  play.addEventListener("click", () => (started === null ? start() : stop()));
  clock.addEventListener("input", () => { stop(); draw(); });
  find(".prompts").addEventListener("change", (event) => {
    stop();
    heat = heats[Number(event.target.value)];
    for (const one of heats) one.hidden = one !== heat;
    clock.value = 0;
    draw();
    start();
  });

  draw();
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  const seen = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    seen.disconnect();
    start();
  }, { threshold: 0.5 });
  seen.observe(find(".lanes"));
})();
