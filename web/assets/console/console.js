// What the console adds with a script: times in the reader's time zone, live pages, and copy buttons. Every page is
// complete without it.
"use strict";

(() => {
  // Times. In the reader's time zone; the exact time is in the title.
  const hourCycle = "h23";
  const today = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle });
  const earlier = new Intl.DateTimeFormat([], {
    year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle,
  });

  // Columns have little room, and in a log each millisecond counts.
  const thisYear = new Intl.DateTimeFormat([], { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hourCycle });
  const longAgo = new Intl.DateTimeFormat([], { day: "numeric", month: "short", year: "numeric" });
  const exact = new Intl.DateTimeFormat([], { ...today.resolvedOptions(), hour: "2-digit", minute: "2-digit", second: "2-digit",
    fractionalSecondDigits: 3 });
  const exactEarlier = new Intl.DateTimeFormat([], { ...earlier.resolvedOptions(), fractionalSecondDigits: 3 });

  function formatTime(element) {
    const at = new Date(element.dateTime);
    if (Number.isNaN(at.getTime())) return;
    const now = new Date();
    const isToday = at.toDateString() === now.toDateString();
    let format = isToday ? today : earlier;
    if (element.hasAttribute("data-exact")) format = isToday ? exact : exactEarlier;
    else if (!isToday && element.closest(".events")) format = at.getFullYear() === now.getFullYear() ? thisYear : longAgo;
    element.textContent = format.format(at);
  }

  function formatTimes(root) {
    for (const element of root.querySelectorAll("time[datetime]")) formatTime(element);
  }

  // Run on the page, and again after each new part of it.
  const improvements = [formatTimes];

  const following = document.getElementById("following");

  function showConnection(word, kind) {
    if (following.textContent !== word) following.textContent = word;
    following.dataset.is = kind;
  }

  // Why a request failed; without a status there was no response.
  function reason(status) {
    if (status === undefined) return "the manager does not respond";
    if (status === 401) return "your session has ended. What you typed is kept: submit it, and log in on the way";
    return `the manager refused the request (status ${status})`;
  }

  // Marks a part of a page beside a form as outdated until it is replaced.
  function outdated(part, status) {
    let note = part.querySelector(":scope > .outdated");
    if (!note) {
      note = document.createElement("p");
      note.className = "note warn outdated";
      note.setAttribute("role", "status");
      part.prepend(note);
    }
    note.textContent = `Not up to date: ${reason(status)}.`;
    showConnection(status === 401 ? "session ended" : "not connected", "lost");
  }

  function upToDate() {
    showConnection("", "");
    delete following.dataset.is;
  }

  // Other scripts of the console add theirs.
  window.mpsConsole = {
    outdated,
    upToDate,
    improve(improvement) {
      improvements.push(improvement);
      improvement(document);
    },
  };

  function improve(root) {
    for (const improvement of improvements) improvement(root);
  }

  // A part with data-hold does not change while it is being read; the button it names shows that there is more.
  let moved = 0;
  document.addEventListener("pointermove", () => { moved = Date.now(); }, { passive: true });

  function isReading(part) {
    // A log starts at its end, unscrolled.
    if (part.matches(".log")) return part.scrollTop < -4;
    const selection = getSelection();
    return part.getBoundingClientRect().top < 0
      || part.querySelector("a:focus-visible") !== null
      || (part.matches(":hover") && Date.now() - moved < 10_000)
      || (!selection.isCollapsed && part.contains(selection.anchorNode));
  }

  // The text of a part without its times, which are in the reader's time zone.
  function readableText(part) {
    return Array.from(part.querySelectorAll("li"), (line) => line.querySelector("a")?.href
      ?? Array.from(line.childNodes, (node) => node.dateTime ?? node.textContent).join(""));
  }

  function holds(part, next) {
    if (!isReading(part)) {
      document.getElementById(part.dataset.hold).hidden = true;
      return false;
    }
    if (readableText(part).join("\n") !== readableText(next).join("\n")) document.getElementById(part.dataset.hold).hidden = false;
    return true;
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.newer");
    const part = button && document.querySelector(`[data-hold="${button.id}"]`);
    if (!part) return;
    button.hidden = true;
    if (part.matches(".log")) part.scrollTop = 0;
    else { getSelection().removeAllRanges(); moved = 0; window.scrollTo(0, 0); }
    (part.matches("[tabindex]") ? part : document.getElementById("page")).focus({ preventScroll: true });
    follower?.refresh();
  });
  document.addEventListener("scroll", (event) => {
    const part = event.target;
    if (!part.matches?.(".log[data-hold]") || isReading(part)) return;
    if (!document.getElementById(part.dataset.hold).hidden) follower?.refresh();
  }, { capture: true, passive: true });

  // The times of a new part are converted before it is compared with what is shown.
  htmx.registerExtension("console", {
    htmx_before_morph_node(_, { oldNode, newNode }) {
      if (newNode instanceof HTMLTimeElement) formatTime(newNode);
      return !(oldNode.dataset?.hold && holds(oldNode, newNode));
    },
  });

  const page = document.getElementById("page");

  document.addEventListener("htmx:after:swap", () => improve(document));

  // A refused reload of a part does not replace it; the page shows the error.
  let follower = null;

  function answered(part, status) {
    if (part.id === "page") follower?.answered(status);
    else if (status === undefined || status >= 400) outdated(part, status);
    else upToDate();
  }

  document.addEventListener("htmx:before:response", (event) => {
    const { target, response: { status } } = event.detail.ctx;
    if (status >= 400) event.preventDefault();
    answered(target, status);
  });
  document.addEventListener("htmx:error", (event) => {
    const ctx = event.detail.ctx;
    if (ctx?.target && !ctx.response) answered(ctx.target);
  });

  // Live pages. The server reports that the page is stale, and the page reloads itself.
  const standing = document.getElementById("standing");

  // Longest silence of a healthy manager, which marks pages stale every 5 s.
  const SILENCE_MS = 15_000;

  function follow() {
    let source = null;
    let asking = false;
    let again = false;
    let timer = null;
    let isOver = false;
    // How the page is followed, and since when its content is valid.
    let how = ["", ""];
    let good = new Date();
    // The time of the last response, whatever its status.
    let heard = Date.now();

    function showNotice(text) {
      if (standing.dataset.text === text) return;
      standing.dataset.text = text;
      standing.textContent = `${text} `;
      const link = document.createElement("a");
      link.href = window.location.href;
      link.textContent = "Reload";
      standing.append(link);
      standing.hidden = false;
    }

    function isOld(status) {
      showNotice(`This page is as of ${today.format(good)}: ${reason(status)}.`);
      showConnection(status === undefined ? "not connected" : "not up to date", "lost");
    }

    function end() {
      isOver = true;
      source?.close();
      clearInterval(timer);
    }

    function answered(status) {
      heard = Date.now();
      if (status === 401) {
        window.location.reload();
      } else if ([403, 404, 410].includes(status)) {
        end();
        showNotice("This no longer exists, or you no longer have access. The page is as last seen.");
        showConnection("gone", "lost");
      } else if (status === undefined || status >= 400) {
        isOld(status);
      } else {
        good = new Date();
        standing.hidden = true;
        delete standing.dataset.text;
        showConnection(...how);
      }
    }

    async function refresh() {
      if (isOver) return;
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

    function connect() {
      if (isOver) return;
      source = new EventSource("/live");
      const mine = source;
      let wasLost = false;
      mine.addEventListener("open", () => {
        clearInterval(timer);
        timer = null;
        how = ["live", "live"];
        // Events during a disconnection are not sent later.
        if (wasLost) refresh();
        else if (standing.hidden) showConnection(...how);
        wasLost = false;
      });
      mine.addEventListener("stale", refresh);
      mine.addEventListener("error", () => {
        if (isOver) return;
        if (mine.readyState === EventSource.CLOSED) {
          // Refused: too many streams, or the session has ended. The page then polls.
          how = ["every 5 s", "slow"];
          if (standing.hidden) showConnection(...how);
          timer ??= setInterval(refresh, 5000);
          setTimeout(() => { if (source === mine) connect(); }, 30000);
        } else {
          wasLost = true;
          isOld();
        }
      });
      window.addEventListener("pagehide", () => mine.close(), { once: true });
    }

    // A browser opens a few connections to a host: one for each hidden page would leave none.
    // A hung manager closes no connection, but is silent for longer than the interval of stale messages.
    let checked = Date.now();
    setInterval(() => {
      const now = Date.now();
      // Nothing was requested while the page was hidden or the machine asleep.
      if (document.hidden || now - checked > 5000) heard = now;
      else if (!isOver && now - heard > SILENCE_MS) isOld();
      checked = now;
    }, 1000);
    document.addEventListener("visibilitychange", () => {
      if (isOver) return;
      if (document.hidden) { source?.close(); source = null; return; }
      if (!source) { again = true; connect(); }
      if (again) { again = false; refresh(); }
    });
    window.addEventListener("pageshow", (event) => { if (event.persisted) connect(); });
    connect();
    return { answered, refresh };
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

  // A form is submitted once, however often its button is clicked.
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
  // On a narrow screen the sections are a strip, and the current one may be outside of it.
  // Not scrolled into view as an element: Chromium would continue the Tab order from there.
  const here = document.querySelector(".places [aria-current]");
  if (here) {
    const [strip, place] = [here.closest(".places"), here.getBoundingClientRect()];
    strip.scrollLeft += place.left + place.width / 2 - strip.getBoundingClientRect().left - strip.clientWidth / 2;
  }
  improve(document);
  if (page.matches("[data-live]")) follower = follow();
})();
