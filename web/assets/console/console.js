// What the console does better with a script than without: times in the reader's zone, pages that follow what happens,
// and text that is copied at a click. Every page is whole without it.
"use strict";

(() => {
  // Times. The zone is the reader's; the exact time stands in the title, as it came.
  const today = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const earlier = new Intl.DateTimeFormat([], {
    year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
  });

  function tellTime(element) {
    const at = new Date(element.dateTime);
    if (Number.isNaN(at.getTime())) return;
    const isToday = at.toDateString() === new Date().toDateString();
    element.textContent = (isToday ? today : earlier).format(at);
  }

  function tellTimes(root) {
    for (const element of root.querySelectorAll("time[datetime]")) tellTime(element);
  }

  // What is to be done to a page as it stands, again after each part of it that is new.
  const improvements = [tellTimes];

  // Other scripts of the console add theirs.
  window.mpsConsole = {
    improve(improvement) {
      improvements.push(improvement);
      improvement(document);
    },
  };

  function improve(root) {
    for (const improvement of improvements) improvement(root);
  }

  // Before it is compared with what is shown, a new part is made the same: nothing jumps.
  htmx.registerExtension("console", {
    htmx_before_morph_node(_, detail) {
      if (detail.newNode instanceof HTMLTimeElement) tellTime(detail.newNode);
    },
  });

  document.addEventListener("htmx:after:swap", () => improve(document));

  // A part that is asked for again and refused is not put into the page.
  document.addEventListener("htmx:before:response", (event) => {
    const status = event.detail.ctx.response.status;
    // A page that follows leads to the log-in; one with a form in it keeps what was typed, until it is sent.
    if (status === 401 && document.querySelector("main[data-live]")) window.location.reload();
    if (status >= 400) event.preventDefault();
  });

  // Following. The server says that the page is stale, and the page asks for itself again.
  const following = document.getElementById("following");

  function follow() {
    let asking = false;
    let again = false;
    let timer = null;

    async function refresh() {
      if (document.hidden) { again = true; return; }
      if (asking) { again = true; return; }
      asking = true;
      try {
        await htmx.ajax("GET", window.location.href, { target: "#page", select: "#page", swap: "outerMorph" });
      } finally {
        asking = false;
      }
      if (again) { again = false; refresh(); }
    }

    function say(word, kind) {
      if (following.textContent !== word) following.textContent = word;
      following.dataset.is = kind;
    }

    function connect() {
      const source = new EventSource("/live");
      source.addEventListener("open", () => { clearInterval(timer); timer = null; say("live", "live"); });
      source.addEventListener("stale", refresh);
      source.addEventListener("error", () => {
        if (source.readyState === EventSource.CLOSED) {
          // Refused: as many follow as may, or the session is over. The page asks by itself then.
          say("every 5 s", "slow");
          timer ??= setInterval(refresh, 5000);
          setTimeout(connect, 30000);
        } else {
          say("not connected", "lost");
        }
      });
      window.addEventListener("pagehide", () => source.close(), { once: true });
    }

    document.addEventListener("visibilitychange", () => {
      if (!document.hidden && again) { again = false; refresh(); }
    });
    window.addEventListener("pageshow", (event) => { if (event.persisted) connect(); });
    connect();
  }

  // Copying: a button with data-copy copies the text of the element that it names.
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    const source = document.getElementById(button.dataset.copy);
    const word = button.textContent;
    try {
      await navigator.clipboard.writeText(source.value ?? source.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(source);
      button.textContent = "Selected: copy it";
    }
    setTimeout(() => { button.textContent = word; }, 2000);
  });

  // A form is sent once, however often somebody clicks.
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.method !== "post" || event.defaultPrevented) return;
    if (form.dataset.sent) { event.preventDefault(); return; }
    form.dataset.sent = "yes";
    setTimeout(() => { delete form.dataset.sent; }, 5000);
  });
  window.addEventListener("pageshow", () => {
    for (const form of document.querySelectorAll("form[data-sent]")) delete form.dataset.sent;
  });

  document.documentElement.classList.add("scripted");
  // On a narrow screen the places are a strip, and the one that the page is in may be beyond its end.
  document.querySelector(".places [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  improve(document);
  const page = document.querySelector("main[data-live]");
  if (page) follow();
})();
