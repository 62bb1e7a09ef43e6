(function () {
  "use strict";
  var dark = window.matchMedia("(prefers-color-scheme: dark)");
  var coarse = window.matchMedia("(pointer: coarse)").matches;
  var plots = Array.prototype.slice.call(document.querySelectorAll(".plot"));

  // Text and grid take the colours of the page, so that they follow light and dark.
  function colours(layout) {
    var style = getComputedStyle(document.documentElement);
    var text = style.getPropertyValue("--text").trim();
    var grid = style.getPropertyValue("--grid").trim();
    var rule = style.getPropertyValue("--rule").trim();
    var page = style.getPropertyValue("--page").trim();
    var update = { "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)", "font.color": text,
      "hoverlabel.bgcolor": page, "hoverlabel.bordercolor": text, "hoverlabel.font.color": text };
    Object.keys(layout).forEach(function (key) {
      if (/^[xy]axis\d*$/.test(key)) {
        update[key + ".gridcolor"] = grid;
        update[key + ".linecolor"] = rule;
        update[key + ".zerolinecolor"] = rule;
      }
    });
    return update;
  }

  function put(layout, update) {
    Object.keys(update).forEach(function (path) {
      var parts = path.split("."), last = parts.pop(), at = layout;
      parts.forEach(function (part) { at = at[part] = at[part] || {}; });
      at[last] = update[path];
    });
    return layout;
  }

  function draw(node) {
    if (node.dataset.drawn) { return; }
    node.dataset.drawn = "yes";
    var figure = JSON.parse(document.getElementById(node.id + "-data").textContent);
    var layout = put(figure.layout, colours(figure.layout));
    if (coarse) { layout.dragmode = false; }
    Plotly.newPlot(node, figure.data, layout, { displayModeBar: false, displaylogo: false, responsive: true });
    node.on("plotly_relayout", function (change) { follow(node, change); });
  }

  // Plots of one chart share their horizontal axis: zooming one zooms all.
  var following = false;
  function follow(node, change) {
    var range = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    var whole = change["xaxis.autorange"];
    if (following || (range[0] === undefined && !whole)) { return; }
    following = true;
    plots.forEach(function (other) {
      if (other !== node && other.dataset.drawn && other.dataset.group === node.dataset.group) {
        Plotly.relayout(other, whole ? { "xaxis.autorange": true } : { "xaxis.range": range });
      }
    });
    following = false;
  }

  function rest() {
    var next = plots.filter(function (node) { return !node.dataset.drawn; })[0];
    if (next) { draw(next); window.setTimeout(rest, 0); }
    else { document.documentElement.dataset.drawn = "yes"; }
  }

  dark.addEventListener("change", function () {
    plots.forEach(function (node) {
      if (node.dataset.drawn) { Plotly.relayout(node, colours(node.layout)); }
    });
  });

  // The text can be read at once: the library is loaded after it has been shown.
  function start() {
    var script = document.createElement("script");
    script.text = document.getElementById("plotly").textContent;
    document.head.appendChild(script);
    var near = new IntersectionObserver(function (entries) {
      entries.forEach(function (entry) { if (entry.isIntersecting) { draw(entry.target); } });
    });
    plots.forEach(function (node) { near.observe(node); });
    window.setTimeout(rest, 50);
    window.addEventListener("beforeprint", function () { plots.forEach(draw); });
  }
  window.addEventListener("load", function () {
    window.requestAnimationFrame(function () { window.setTimeout(start, 0); });
  });
}());
