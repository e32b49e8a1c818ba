"use strict";
// What a process says is shown as text, never as markup.
const PATHS = ["tcp", "shm", "rdma", "utcp"], KEPT = 120, PAUSE = 1000;
const history = { bytes: [], open: [] };
let before = null;

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit + 1 < units.length) { bytes /= 1024; unit += 1; }
  return bytes.toFixed(unit && bytes < 100 ? 1 : 0) + " " + units[unit];
}

function age(s) {
  if (s === null) return "";
  if (s >= 86400) return Math.floor(s / 86400) + "d" + Math.floor(s % 86400 / 3600) + "h";
  if (s >= 3600) return Math.floor(s / 3600) + "h" + Math.floor(s % 3600 / 60) + "m";
  return s >= 60 ? Math.floor(s / 60) + "m" + s % 60 + "s" : s + "s";
}

function plot(id, rows, word) {
  const svg = document.getElementById(id), make = (name) => document.createElementNS("http://www.w3.org/2000/svg", name);
  const top = Math.max(1, ...rows.flat()), width = svg.clientWidth || 600;
  svg.setAttribute("viewBox", `0 0 ${width} 150`);
  svg.replaceChildren();
  PATHS.forEach((path, index) => {
    const line = make("polyline");
    line.setAttribute("class", path);
    line.setAttribute("points", rows.map((row, at) =>
      `${width - (rows.length - 1 - at) * width / (KEPT - 1)},${145 - row[index] / top * 125}`).join(" "));
    svg.append(line);
  });
  const label = make("text");
  label.setAttribute("x", "4");
  label.setAttribute("y", "14");
  label.textContent = word(top);
  svg.append(label);
}

function keep(rows, row) {
  rows.push(row);
  if (rows.length > KEPT) rows.shift();
}

const sum = (of) => PATHS.reduce((all, path) => all + (of[path] || 0), 0);

function show(processes, time) {
  const said = processes.filter((p) => p.problem === undefined);
  const known = new Map((before ? before.processes : []).map((p) => [p.pid + " " + p.program, p]));
  const seconds = before ? Math.max(0.001, (time - before.time) / 1000) : 1;
  const rates = PATHS.map(() => 0), open = PATHS.map(() => 0);
  const body = document.getElementById("processes");
  body.replaceChildren();
  for (const p of said) {
    const was = known.get(p.pid + " " + p.program) || p;
    const rate = (is, had) => Math.max(0, (is - had) / seconds);
    PATHS.forEach((path, index) => {
      rates[index] += rate(p.tx_bytes[path], was.tx_bytes[path]);
      open[index] += p.open[path];
    });
    const row = document.createElement("tr");
    if (p.library_replaced) {
      row.className = "old";
      row.title = "its library has been replaced since it started";
    }
    const share = p.connections_total ? (100 * p.accelerated_total / p.connections_total).toFixed(1) + " %" : "-";
    for (const cell of [p.pid, p.program, p.uid, p.container || "", p.library_version || "", age(p.uptime_s), ...PATHS.map((path) => p.open[path]),
      p.connections_total, share, size(rate(sum(p.tx_bytes), sum(was.tx_bytes))), size(rate(sum(p.rx_bytes), sum(was.rx_bytes)))]) {
      row.insertCell().textContent = cell;
    }
    body.append(row);
  }
  if (before) keep(history.bytes, rates);
  keep(history.open, open);
  plot("bytes", history.bytes, (top) => size(top) + "/s");
  plot("open", history.open, (top) => Math.round(top) + " connections");
  before = { processes: said, time };
}

async function look() {
  const state = document.getElementById("state");
  try {
    const answer = await fetch("processes.json");
    if (!answer.ok) throw new Error(answer.statusText);
    show(await answer.json(), performance.now());
    state.textContent = new Date().toLocaleTimeString();
  } catch (error) {
    state.textContent = "no answer: " + error.message;
  }
  setTimeout(look, PAUSE);
}

const legend = document.getElementById("legend");
for (const path of PATHS) {
  const word = document.createElement("span");
  word.className = path;
  word.textContent = path;
  legend.append(word);
}
look();
