// Opens a page in Chromium at 1280 and 390 px, light and dark, and prints what a reader would trip over, as JSON.
//
//     node tests/browser/check.js PAGE [FOLDER FOR SCREENSHOTS]
//
// CHROMIUM names the browser; axe-core and puppeteer-core are looked for in NODE_MODULES.
"use strict";
const fs = require("fs");
const path = require("path");
const modules = process.env.NODE_MODULES;
const find = (name) => require.resolve(name, { paths: [modules, path.dirname(modules)] });
const puppeteer = require(find("puppeteer-core"));

// Texts below 14 px, and plots whose drawing is not there.
function look() {
  const small = [...document.querySelectorAll("body *")].filter((node) =>
    !["SCRIPT", "STYLE"].includes(node.tagName) &&
    [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim()) &&
    parseFloat(getComputedStyle(node).fontSize) < 13.99);
  const plots = [...document.querySelectorAll(".plot")];
  return {
    small: small.map((node) => node.textContent.trim().slice(0, 40)),
    empty: plots.filter((node) => !node.querySelector("svg")).map((node) => node.id),
    overflow_px: document.documentElement.scrollWidth - window.innerWidth,
  };
}

async function check(browser, file, width, scheme, shots) {
  const page = await browser.newPage();
  const asked = [];
  const errors = [];
  page.on("request", (request) => { if (!/^(file|data|blob):/.test(request.url())) { asked.push(request.url()); } });
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("console", (line) => { if (line.type() === "error") { errors.push(line.text()); } });
  await page.setViewport({ width, height: 900 });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  const start = Date.now();
  await page.goto("file://" + path.resolve(file), { waitUntil: "load" });
  const loaded_ms = Date.now() - start;
  await page.waitForFunction(() => document.documentElement.dataset.drawn === "yes", { timeout: 120000 });
  const drawn_ms = Date.now() - start;
  await page.evaluate(fs.readFileSync(find("axe-core/axe.min.js"), "utf8"));
  const axe = await page.evaluate(() => window.axe.run(document));
  const seen = await page.evaluate(look);
  if (shots) { await page.screenshot({ path: path.join(shots, `${width}-${scheme}.png`), fullPage: true }); }
  await page.close();
  const violations = axe.violations.map((one) => ({ impact: one.impact, id: one.id, nodes: one.nodes.length }));
  return { width, scheme, loaded_ms, drawn_ms, asked, errors, violations, ...seen };
}

(async () => {
  const [file, shots] = process.argv.slice(2);
  const browser = await puppeteer.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox"] });
  const found = [];
  for (const width of [1280, 390]) {
    for (const scheme of ["light", "dark"]) { found.push(await check(browser, file, width, scheme, shots)); }
  }
  await browser.close();
  console.log(JSON.stringify(found));
})();
