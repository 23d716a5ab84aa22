-- SPDX-License-Identifier: Apache-2.0
-- Style and script of the page of `moonhalo report`. The page asks no host for anything: its policy forbids that.

local page = {}

local kEntities = {["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;"}

function page.escaped(value) return (tostring(value):gsub('[&<>"]', kEntities)) end

local kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

--- Bytes as the text of a data URL.
function page.base64(bytes)
  local parts = {}
  for at = 1, #bytes, 3 do
    local a, b, c = bytes:byte(at, at + 2)
    local bits = a << 16 | (b or 0) << 8 | (c or 0)
    for i = 0, 3 do
      local digit = bits >> (18 - 6 * i) & 63
      parts[#parts + 1] = (i == 2 and not b or i == 3 and not c) and "=" or kDigits:sub(digit + 1, digit + 1)
    end
  end
  return table.concat(parts)
end

page.head = [[<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>%s</title>
<style>
body { font: 14px/1.45 system-ui, sans-serif; color: #1d2430; margin: 24px auto; max-width: 1360px; padding: 0 16px; }
h1 { font-size: 20px; } h2 { font-size: 16px; margin-top: 28px; } h3 { font-size: 13px; margin: 0 0 2px; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
td, th { text-align: left; padding: 3px 12px 3px 0; border-bottom: 1px solid #e3e6ea; vertical-align: top; }
tr.differs td { background: #fdf3e7; }
.charts { display: flex; flex-wrap: wrap; gap: 20px; } .chart { width: 640px; position: relative; }
svg { width: 100%%; height: auto; display: block; } svg text { font-size: 11px; fill: #5b6573; }
.tip { position: absolute; background: #fffffff0; border: 1px solid #c8ced6; padding: 3px 7px; font-size: 12px;
  pointer-events: none; display: none; white-space: pre; }
.key { display: inline-block; width: 14px; height: 3px; margin: 0 6px 3px 0; }
.flame rect { stroke: #ffffff; stroke-width: 0.5; } svg.flame text { font-size: 10px; fill: #1d2430; }
img { max-width: 100%%; } pre { overflow-x: auto; background: #f6f7f9; padding: 8px; } label { margin-right: 16px; }
</style></head><body>
]]

page.controls = [[<p><label><input type="checkbox" id="log"> logarithmic</label>
<label>smoothing <input type="range" id="smooth" min="0" max="50" value="0"></label></p>
]]

page.script = [[<script>
"use strict";
const W = 640, H = 280, L = 64, R = 12, T = 10, B = 26;
const data = JSON.parse(document.getElementById("data").textContent);
const byId = name => document.getElementById(name);
const range = vs => vs.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
const short = v => String(Number(v.toPrecision(4)));
function smoothed(ys, n) {
  if (!n) return ys;
  return ys.map((_, i) => {
    const reach = Math.min(n, i, ys.length - 1 - i), part = ys.slice(i - reach, i + reach + 1);
    return part.reduce((a, b) => a + b, 0) / part.length;
  });
}
function ticks(low, high) {
  const raw = (high - low) / 5, size = 10 ** -Math.ceil(-Math.log10(raw));
  const step = [1, 2, 5, 10].map(f => f * size).find(s => s >= raw), found = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-9; v += step) found.push(v);
  return found;
}
function draw(box, chart) {
  const log = byId("log").checked, n = Number(byId("smooth").value);
  const curves = chart.series.map(s => {
    const ys = smoothed(s.y, n), keep = ys.map((y, i) => i).filter(i => !log || ys[i] > 0);
    return {name: s.run, color: s.color, x: keep.map(i => s.x[i]), y: keep.map(i => ys[i])};
  });
  const to = log ? Math.log10 : v => v;
  const xs = curves.flatMap(c => c.x), ys = curves.flatMap(c => c.y.map(to));
  let [x0, x1, y0, y1] = [...range(xs), ...range(ys)];
  if (!xs.length) [x0, x1, y0, y1] = [0, 1, 0, 1];
  if (x0 === x1) x1 = x0 + 1;
  if (y0 === y1) { y0 -= Math.abs(y0) / 10 || 1; y1 += Math.abs(y1) / 10 || 1; }
  const part = (v, low, high) => (v / 2 - low / 2) / (high / 2 - low / 2);
  const px = x => L + part(x, x0, x1) * (W - L - R), py = y => H - B - part(to(y), y0, y1) * (H - T - B);
  let out = "";
  for (const t of ticks(y0, y1)) {
    const at = H - B - part(t, y0, y1) * (H - T - B);
    out += `<path d="M${L} ${at}H${W - R}" stroke="#e3e6ea"/><text x="${L - 6}" y="${at + 4}" text-anchor="end">`
      + `${short(log ? 10 ** t : t)}</text>`;
  }
  for (const t of ticks(x0, x1)) out += `<text x="${px(t)}" y="${H - 8}" text-anchor="middle">${short(t)}</text>`;
  for (const c of curves)
    out += `<path class="curve" fill="none" stroke="${c.color}" stroke-width="1.5" d="`
      + c.x.map((x, i) => `${i ? "L" : "M"}${px(x).toFixed(1)} ${py(c.y[i]).toFixed(1)}`).join("") + `"/>`;
  box.querySelector("svg").innerHTML = out;
  box.hover = at => {
    const x = x0 + (at - L) / (W - L - R) * (x1 - x0), lines = [];
    for (const c of curves) {
      let best = 0;
      c.x.forEach((v, i) => { if (Math.abs(v - x) < Math.abs(c.x[best] - x)) best = i; });
      if (c.x.length) lines.push(`${c.name}  step ${c.x[best]}: ${c.y[best]}`);
    }
    return lines.join("\n");
  };
}
const boxes = [...document.querySelectorAll(".chart")];
const redraw = () => boxes.forEach((box, i) => draw(box, data[i]));
for (const box of boxes) {
  const tip = box.querySelector(".tip");
  box.addEventListener("mousemove", event => {
    const area = box.querySelector("svg").getBoundingClientRect();
    tip.textContent = box.hover((event.clientX - area.left) / area.width * W);
    tip.style.display = "block";
    tip.style.left = Math.min(event.clientX - area.left + 12, area.width - 200) + "px";
    tip.style.top = event.clientY - area.top + 30 + "px";
  });
  box.addEventListener("mouseleave", () => { tip.style.display = "none"; });
}
if (boxes.length) {
  byId("log").addEventListener("change", redraw);
  byId("smooth").addEventListener("input", redraw);
  redraw();
}
</script>
]]

return page
