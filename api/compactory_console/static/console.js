"use strict";
// What the pages need beside htmx: live content by server-sent events, charts, copying, local times.

/** Return true while the visitor reads or writes in a way that new content would disturb. */
const isBusy = (element) => {
  const selection = document.getSelection();
  if (selection && !selection.isCollapsed && element.contains(selection.anchorNode)) return true;
  const active = document.activeElement;
  return Boolean(active && active.matches("input, textarea, select") && active.type !== "checkbox" && active.value !== active.defaultValue);
};

const showLocalTimes = (root) => {
  for (const time of root.querySelectorAll("time[datetime]:not([title])")) {
    time.title = new Date(time.dateTime).toLocaleString(undefined, { timeZoneName: "short" });
  }
};

const setConnected = (isConnected) => { document.getElementById("connection").hidden = isConnected; };

/** Follow events; call `take` with the event that is not taken yet once nobody is disturbed. */
const follow = (address, name, element, take) => {
  let waiting = [];
  const counter = document.getElementById("waiting");
  const flush = () => {
    if (!waiting.length || isBusy(element)) return;
    for (const text of waiting) take(text);
    waiting = [];
    if (counter) counter.textContent = "";
    showLocalTimes(element);
  };
  const source = new EventSource(address);
  source.addEventListener(name, (event) => {
    setConnected(true);
    if (event.lastEventId) address = address.replace(/after=\d+/, `after=${event.lastEventId}`);
    waiting = name === "content" ? [event.data] : [...waiting, event.data].slice(-500);
    flush();
    if (counter && waiting.length) counter.textContent = `${waiting.length} changes wait.`;
  });
  source.addEventListener("open", () => setConnected(true));
  source.addEventListener("error", () => {
    setConnected(false);
    if (source.readyState === EventSource.CLOSED) setTimeout(() => { if (document.contains(element)) follow(address, name, element, take); }, 2000);
  });
  setInterval(flush, 500);
  addEventListener("pagehide", () => source.close());
};

/** Return elements of text that the console has made; scripts in it never run. */
const parsed = (text) => {
  const template = document.createElement("template");
  template.innerHTML = text;
  return template.content;
};

const drawChart = async (element) => {
  const style = getComputedStyle(document.documentElement);
  const colours = ["#2a7de1", "#d9622b", "#2a9d74", "#9a5fd0", "#b8860b", "#d0437f"];
  const time = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);
  const axis = { stroke: style.getPropertyValue("--quiet"), grid: { stroke: style.getPropertyValue("--line"), width: 1 } };
  let chart = null;
  let labels = "";
  const update = async () => {
    if (document.hidden) return;
    const answer = await fetch(element.dataset.chart).catch(() => null);
    if (!answer || !answer.ok) return;
    const { series } = await answer.json();
    const data = series.length ? uPlot.join(series.map((item) => [item.times, item.values]), series.map(() => [null, 2])) : [];
    const names = series.map((item) => item.label).join("\n");
    if (chart && names === labels) { chart.setData(data); return; }
    if (chart) chart.destroy();
    labels = names;
    if (!series.length) { element.textContent = "No figures yet."; chart = null; return; }
    element.textContent = "";
    const lines = series.map((item, number) => ({ label: item.label, stroke: colours[number % colours.length], width: 1.5, spanGaps: false, points: { show: false } }));
    chart = new uPlot({ width: element.clientWidth || 320, height: 170, series: [{ label: "UTC", value: (_, seconds) => (seconds === null ? "–" : time(seconds)) }, ...lines], axes: [{ ...axis, space: 70, values: (_, splits) => splits.map(time) }, { ...axis, size: 60 }], scales: { y: { range: (_, low, high) => [Math.min(0, low), high > 0 ? high * 1.1 : 1] } } }, data, element);
  };
  await update();
  setInterval(update, 5000);
  document.addEventListener("visibilitychange", update);
  new ResizeObserver(() => { if (chart) chart.setSize({ width: element.clientWidth, height: 170 }); }).observe(element);
};

addEventListener("DOMContentLoaded", () => {
  showLocalTimes(document);
  for (const element of document.querySelectorAll("[data-live]")) {
    follow(element.dataset.live, "content", element, (text) => element.replaceChildren(parsed(text)));
  }
  for (const element of document.querySelectorAll("[data-feed]")) {
    const filter = document.getElementById("live-filter");
    follow(element.dataset.feed, "row", element, (text) => {
      const row = parsed(text).firstElementChild;
      if (!row || (filter.value && !row.cells[2].textContent.includes(filter.value))) return;
      element.prepend(row);
      while (element.rows.length > 500) element.lastElementChild.remove();
    });
  }
  for (const element of document.querySelectorAll("[data-chart]")) drawChart(element);
  document.body.addEventListener("htmx:afterSwap", (event) => showLocalTimes(event.target));
  document.body.addEventListener("htmx:beforeRequest", (event) => {
    const list = document.getElementById("list");
    if (event.target.matches("[data-polls]") && list && (document.hidden || isBusy(list) || list.querySelector("input:checked"))) event.preventDefault();
  });
  document.body.addEventListener("htmx:sendError", () => setConnected(false));
  document.body.addEventListener("htmx:afterRequest", (event) => { if (event.detail.xhr.status) setConnected(true); });
  document.body.addEventListener("click", (event) => {
    if (event.target.matches("[data-all]")) {
      for (const box of event.target.closest("table").querySelectorAll("tbody input[type=checkbox]")) box.checked = event.target.checked;
    }
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    navigator.clipboard.writeText(button.dataset.copy).then(() => { button.textContent = "Copied"; setTimeout(() => { button.textContent = "Copy"; }, 1500); });
  });
});
