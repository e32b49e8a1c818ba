"use strict";
// What a process says is shown as text, never as markup.
const PATHS = ["tcp", "shm", "rdma", "utcp"], KEPT = 120, PAUSE = 1000;
const history = { bytes: [], open: [], latency: [] };
const LATENCIES = ["answer-p50", "answer-p99", "serve-p50", "serve-p99"];
let before = null, counted = null;

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

function plot(id, rows, word, lines = PATHS) {
  const svg = document.getElementById(id), make = (name) => document.createElementNS("http://www.w3.org/2000/svg", name);
  const top = Math.max(1, ...rows.flat().filter((value) => value !== null)), width = svg.clientWidth || 600;
  svg.setAttribute("viewBox", `0 0 ${width} 150`);
  svg.replaceChildren();
  lines.forEach((path, index) => {
    const line = make("polyline");
    line.setAttribute("class", path);
    // (A moment of which nothing is known has no point.)
    line.setAttribute("points", rows.map((row, at) => row[index] === null ? "" :
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

function time(ns) {
  const units = ["ns", "us", "ms", "s"];
  let unit = 0;
  while (ns >= 1000 && unit + 1 < units.length) { ns /= 1000; unit += 1; }
  return ns.toFixed(unit && ns < 100 ? 1 : 0) + " " + units[unit];
}

// Of what was counted since the look before, in all processes that were there then, too.
function quantile(buckets, part) {
  const ends = [...buckets.keys()].sort((a, b) => a - b);
  const all = ends.reduce((sum, end) => sum + buckets.get(end), 0);
  let seen = 0;
  for (const end of ends) {
    seen += buckets.get(end);
    if (seen >= all * part && seen > 0) return end;
  }
  return null;
}

function showLatencies(processes) {
  const now = new Map(processes.map((p) => [p.pid + " " + p.program, p.times]));
  if (counted) {
    const row = [];
    for (const name of ["answer", "serve"]) {
      const more = new Map();
      for (const [key, times] of now) {
        const was = counted.has(key) ? new Map(counted.get(key)[name]) : null;
        for (const [end, count] of was ? times[name] : []) {
          more.set(end, (more.get(end) || 0) + Math.max(0, count - (was.get(end) || 0)));
        }
      }
      row.push(quantile(more, 0.5), quantile(more, 0.99));
    }
    keep(history.latency, row);
  }
  counted = now;
  document.getElementById("latency-hint").hidden = processes.length !== 0;
  document.getElementById("latency-legend").hidden = processes.length === 0;
  plot("latency", history.latency, time, LATENCIES);
  const said = history.latency.some((row) => row.some((value) => value !== null));
  if (!said) document.querySelector("#latency text").textContent = "";
}

async function ask(name) {
  const answer = await fetch(name);
  if (!answer.ok) throw new Error(answer.statusText);
  return answer.json();
}

async function look() {
  const state = document.getElementById("state");
  try {
    show(await ask("processes.json"), performance.now());
    showLatencies(await ask("latencies.json"));
    state.textContent = new Date().toLocaleTimeString();
  } catch (error) {
    state.textContent = "no answer: " + error.message;
  }
  setTimeout(look, PAUSE);
}

for (const [id, words] of [["legend", PATHS], ["latency-legend", LATENCIES]]) {
  for (const name of words) {
    const word = document.createElement("span");
    word.className = name;
    word.textContent = name.replace("-", " ");
    document.getElementById(id).append(word);
  }
}
look();
