// Unpacks Bokeh, draws the charts one after another, and connects the switches of their legends.
const unpacked = ({ textContent }) => {
  const bytes = Uint8Array.from(atob(textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
};
const dark = matchMedia("(prefers-color-scheme: dark)");
const touch = matchMedia("(pointer: coarse)");

unpacked(document.getElementById("library")).then(async (code) => {
  const script = document.createElement("script");
  script.textContent = code;
  document.head.append(script);
  Bokeh.logger.set_level("warn");
  for (const chart of document.querySelectorAll(".chart")) {
    const [view] = await Bokeh.embed.embed_item(JSON.parse(await unpacked(chart)), chart);
    const { renderers, toolbar } = view.model;
    chart.closest("figure").addEventListener("change", ({ target }) => {
      for (const drawn of renderers)
        if (drawn.name === target.value) drawn.visible = target.checked;
    });
    dark.addEventListener("change", () => view.request_repaint());
    // A finger that moves over a chart scrolls the page, until a tool is chosen.
    if (touch.matches) toolbar.gestures.pan.active.active = false;
  }
  document.body.dataset.drawn = "";
});
