'use strict';
/* Draws a page from the document that report/page.c writes behind this script: drawPage({sections: [...]}).
 * Every text is inserted as text, never as markup. A page that is drawn again replaces what was drawn. */
function drawPage(doc) {
  const SVG = document.querySelector('nav svg').namespaceURI;

  function make(tag, cls, into) {
    const e = document.createElement(tag);
    if (cls) e.className = cls;
    if (into) into.append(e);
    return e;
  }
  function shape(tag, attributes, into) {
    const e = document.createElementNS(SVG, tag);
    for (const name in attributes) e.setAttribute(name, attributes[name]);
    return into.appendChild(e);
  }
  /* A drawing in units of width x height that fills its box. */
  function stretched(width, height, into) {
    const viewBox = '0 0 ' + width + ' ' + height;
    return shape('svg', { viewBox, preserveAspectRatio: 'none', role: 'img' }, into);
  }
  /* A string, or a list of strings and {class: text} parts. */
  function say(into, rich) {
    for (const part of [].concat(rich === undefined ? [] : rich)) {
      if (typeof part === 'string') into.append(part);
      else for (const cls in part) {
        const tag = cls.split(' ')[0];
        make(tag === 'b' || tag === 'small' ? tag : 'span', cls, into).textContent = part[cls];
      }
    }
    return into;
  }
  function flags(block, names) {
    return names.filter(n => block[n]).map(n => ' ' + n).join('');
  }
  function place(e, from, width) {
    e.style.left = 100 * from + '%';
    e.style.width = 100 * width + '%';
  }

  /* --- numbers ----------------------------------------------------------------------------------------- */

  function num(v) {
    const a = Math.abs(v);
    if (a === 0) return '0';
    return a >= 1e5 || a < 1e-3 ? v.toExponential(3) : String(+v.toPrecision(4));
  }
  const whole = v => Math.round(v).toLocaleString('en');

  /* As many digits as the distance between two ticks asks for. */
  function tickText(v, tick) {
    const digits = tick > 0 ? Math.ceil(-Math.log10(tick) - 1e-9) : 9;
    if (Math.abs(v) < 1e-9 * tick) return '0';
    if (digits <= 0 && Math.abs(v) < 1e4) return whole(v);
    if (digits > 0 && digits <= 4 && Math.abs(v) < 1e4) return v.toFixed(digits);
    if ((tick > 0 && digits > 4) || Math.abs(v) < 1e-3 || Math.abs(v) >= 1e15)
      return (+v.toPrecision(3)).toExponential().replace('e+', 'e');
    const compact = new Intl.NumberFormat('en', { notation: 'compact', maximumSignificantDigits: 4 });
    return compact.format(v).replace('K', 'k');
  }

  /* --- axes -------------------------------------------------------------------------------------------- */

  /* 1, 2 or 5 times a power of ten, at least x. */
  function nice(x) {
    const p = Math.pow(10, Math.floor(Math.log10(x)));
    return [1, 2, 5, 10].map(m => m * p).find(v => x <= v * (1 + 1e-12)) || 10 * p;
  }
  /* A range of no width, or of one that doubles cannot tell apart, is widened. */
  function widen(a, least) {
    const size = Math.max(Math.abs(a.lo), Math.abs(a.hi));
    if (a.hi - a.lo > 1e-6 * size && a.hi > a.lo) return;
    const by = size > 0 ? Math.max(0.05 * size, least) : Math.max(least, 0.5);
    a.lo -= by;
    a.hi += by;
  }
  function axisX(lo, hi) {
    const a = { lo, hi };
    widen(a, 1);
    a.tick = Math.max(1, nice((a.hi - a.lo) / 6));
    return a;
  }
  function axisY(lo, hi, chart) {
    const a = { lo, hi };
    if (chart.log && lo > 0 && hi / lo > 8) {
      const air = Math.pow(hi / lo, 0.04);
      return { lo: lo / air, hi: hi * air, tick: 0, log: true };
    }
    if (chart.zero) a.lo = Math.min(lo, 0), a.hi = Math.max(hi, a.lo);
    if (chart.full) a.hi = Math.max(a.hi, 1);
    if (chart.zero && a.hi <= 0) a.hi = chart.percent ? 0.05 : 1;
    widen(a, 0);
    if (lo >= 0 && a.lo < 0) a.lo = 0;
    a.tick = nice((a.hi - a.lo) / 5);
    a.lo = Math.floor(a.lo / a.tick + 1e-9) * a.tick;
    a.hi = Math.ceil(a.hi / a.tick - 1e-9) * a.tick;
    return a;
  }
  /* 1, 2 and 5 of each power of ten while those are few, then the powers, then every so many of them. */
  function logTicks(a) {
    const out = [], decades = Math.log10(a.hi / a.lo), every = decades > 6 ? Math.ceil(decades / 6) : 1;
    for (let e = Math.floor(Math.log10(a.lo)); e <= Math.ceil(Math.log10(a.hi)); e++)
      for (const m of decades <= 2.2 ? [1, 2, 5] : [1]) {
        const v = m * Math.pow(10, e);
        if (e % every === 0 && v >= a.lo && v <= a.hi) out.push(v);
      }
    return out;
  }
  function ticks(a) {
    if (a.log) return logTicks(a);
    const out = [];
    for (let v = Math.ceil(a.lo / a.tick - 1e-9) * a.tick; v <= a.hi + 1e-9 * a.tick && out.length < 12;)
      out.push(v), v = out[0] + out.length * a.tick;
    return out;
  }
  function fraction(a, v) {
    const f = a.log ? Math.log(v / a.lo) / Math.log(a.hi / a.lo) : (v - a.lo) / (a.hi - a.lo);
    return Math.min(1, Math.max(0, f));
  }
  function label(into, cls, f, text) {
    const e = make('span', cls, into);
    e.style.setProperty('--f', f);
    e.textContent = text;
  }

  /* --- charts ------------------------------------------------------------------------------------------ */

  /* The tip stays inside its box: to the left of the pointer in the right half. */
  function moveTip(tip, box, f, y) {
    tip.style.left = f < 0.5 ? 'calc(' + 100 * f + '% + 14px)' : '';
    tip.style.right = f < 0.5 ? '' : 'calc(' + 100 * (1 - f) + '% + 14px)';
    tip.style.top = Math.max(0, Math.min(y, box.clientHeight - tip.offsetHeight)) + 'px';
  }
  /* Index of the point [step, value, step, value, …] nearest to a step. */
  function nearest(p, step) {
    let lo = 0, hi = p.length / 2 - 1;
    while (lo < hi) {
      const mid = (lo + hi) >> 1;
      if (p[2 * mid] < step) lo = mid + 1; else hi = mid;
    }
    return lo && step - p[2 * lo - 2] < p[2 * lo] - step ? lo - 1 : lo;
  }
  /* Inside the drawing both axes run from 0 to 1000, y downwards. */
  function path(points, x, y, dots) {
    let d = '';
    for (let i = 0; i < points.length; i += 2) {
      const at = (1000 * fraction(x, points[i])).toFixed(1) + ' ' +
                 (1000 * (1 - fraction(y, points[i + 1]))).toFixed(1);
      d += dots ? 'M' + at + 'h0' : (i ? ' ' : 'M') + at;      /* no length and round ends: a dot */
    }
    return d;
  }
  function showValues(plot, drawing, chart, x) {
    let cross, tip;
    plot.onpointermove = function (e) {
      const r = drawing.getBoundingClientRect(), box = plot.getBoundingClientRect();
      const f = Math.min(1, Math.max(0, (e.clientX - r.left) / r.width));
      if (!cross) cross = make('div', 'cross', plot), tip = make('div', 'tip', plot);
      tip.textContent = '';
      const head = make('b', '', tip);
      for (const c of chart.curves) {
        const p = c.smooth || c.points, i = nearest(p, x.lo + f * (x.hi - x.lo)), v = p[2 * i + 1];
        const row = make('span', 'k' + (c.color + 1), tip), name = make('div', '', row);
        make('i', '', name);
        name.append(c.name);
        make('b', '', row).textContent = chart.percent ? num(100 * v) + ' %' : num(v);
        if (!head.textContent) head.textContent = 'step ' + whole(p[2 * i]);
      }
      cross.style.setProperty('--f', f);
      moveTip(tip, plot, (r.left - box.left + f * r.width) / box.width, e.clientY - r.top - 20);
    };
    plot.onpointerleave = function () {
      if (cross) cross.remove(), tip.remove(), cross = tip = null;
    };
  }
  function legend(into, chart) {
    const list = make('span', 'legend', into);
    for (const c of chart.curves) {
      const e = make('span', 'k' + (c.color + 1), list);
      make('i', '', e);
      say(e, [c.name + ' ', { b: c.last }]);
    }
  }
  function drawChart(b) {
    const busy = b.curves.length > 2 ? ' busy' : '';
    const fig = make('figure', 'panel chart' + flags(b, ['wide', 'left']) + busy);
    const x = axisX(b.range[0], b.range[1]), y = axisY(b.range[2], b.range[3], b);
    const scale = b.percent ? 100 : 1;
    const caption = make('figcaption', '', fig);
    say(make('span', 'title', caption), y.log ? b.title.concat({ small: 'log axis' }) : b.title);
    legend(caption, b);
    const plot = make('div', 'plot', fig);
    const drawing = stretched(1000, 1000, plot);
    drawing.setAttribute('aria-label', b.label + ' over steps ' + whole(x.lo) + ' to ' + whole(x.hi) +
                         b.curves.map(c => '; ' + c.name + ' from ' + c.first + ' to ' + c.last).join(''));
    const lines = ticks(y).map(v => 'M0 ' + 1000 * (1 - fraction(y, v)) + 'H1000');
    shape('path', { class: 'lines', d: lines.join('') }, drawing);
    for (const c of b.curves) {
      const add = (cls, points) => shape('path', { class: 'curve ' + cls + ' k' + (c.color + 1),
                                                   d: path(points, x, y, cls === 'dots') }, drawing);
      const line = c.dashed ? 'dash' : 'line';
      add(c.smooth ? 'raw' : line, c.points);
      if (c.smooth) add(line, c.smooth);
      if (c.dots) add('dots', c.points);
    }
    for (const v of ticks(y)) label(plot, 'yl', 1 - fraction(y, v), tickText(v * scale, y.tick * scale));
    for (const v of ticks(x)) label(plot, 'xl', fraction(x, v), whole(v));
    make('span', 'xs', plot).textContent = 'step';
    showValues(plot, drawing, b, x);
    return fig;
  }

  /* The shade of a load over the mean of its layer, by powers of sqrt(2) from 1/4 to 4; null: no tokens. */
  function shade(load) {
    if (load === null) return 'hn';
    return load <= 0 ? 'hx' : 'h' + Math.min(8, Math.max(0, Math.round(2 * Math.log2(load)) + 4));
  }
  function drawHeat(b) {
    const heat = make('div', 'heat'), rows = b.layers.length, n = b.experts, paths = {};
    const drawing = stretched(n, rows, heat);
    drawing.style.height = Math.min(420, Math.max(96, 12 * rows)) + 'px';
    drawing.setAttribute('aria-label', b.label);
    for (let y = 0; y < rows; y++)
      for (let x = 0, from; x < n; ) {
        const s = shade(b.load[y * n + x]);
        for (from = x; x < n && shade(b.load[y * n + x]) === s;) x++;
        paths[s] = (paths[s] || '') + 'M' + from + ' ' + y + 'h' + (x - from) + 'v1h-' + (x - from) + 'z';
      }
    for (const s in paths) shape('path', { d: paths[s], style: '--s:var(--' + s + ')' }, drawing);
    const some = (count, each) => {
      const shown = count < 8 ? count : 5;
      for (let i = 0; i < shown; i++) each(shown > 1 ? Math.floor(i * (count - 1) / (shown - 1)) : 0);
    };
    some(rows, l => label(heat, 'yl', (l + 0.5) / rows, b.layers[l]));
    some(n, e => label(heat, 'xl', (e + 0.5) / n, e));
    let tip;
    drawing.onpointermove = function (e) {
      const r = drawing.getBoundingClientRect(), box = heat.getBoundingClientRect();
      const fx = (e.clientX - r.left) / r.width, fy = (e.clientY - r.top) / r.height;
      const x = Math.min(n - 1, Math.max(0, Math.floor(fx * n)));
      const y = Math.min(rows - 1, Math.max(0, Math.floor(fy * rows)));
      const load = b.load[y * n + x];
      if (!tip) tip = make('div', 'tip', heat);
      tip.textContent = 'layer ' + b.layers[y] + ', expert ' + x + ': ' +
        (load === null ? 'no tokens' : num(load) + ' × mean');
      moveTip(tip, heat, (r.left - box.left + fx * r.width) / box.width, fy * r.height + 12);
    };
    drawing.onpointerleave = function () { if (tip) tip.remove(), tip = null; };
    return heat;
  }
  function drawScale(b) {
    const scale = make('div', 'scale wide'), row = make('div', '', scale);
    row.append('load over the mean of the layer: ¼');
    const shades = make('span', '', row);
    for (let i = 0; i < 9; i++) make('i', 'shade', shades).style.setProperty('--s', 'var(--h' + i + ')');
    row.append('4');
    const none = make('div', '', scale);
    make('i', 'shade mark', none).style.setProperty('--s', 'var(--hx)');
    none.append('no token at all');
    for (const text of b.notes) make('div', '', scale).textContent = text;
    return scale;
  }

  /* --- tables, bars, tiles ----------------------------------------------------------------------------- */

  function drawTable(b) {
    const box = make(b.fold ? 'details' : 'div', b.fold ? '' : 'scroll');
    if (b.fold) make('summary', '', box).textContent = b.fold;
    const table = make('table', '', b.fold ? make('div', 'scroll', box) : box), head = make('tr', '', table);
    for (const [cls, name] of b.columns) make('th', cls, head).textContent = name;
    if (!b.columns.some(c => c[1])) head.remove();
    for (const cells of b.rows) {
      const row = make('tr', '', table);
      cells.forEach((cell, i) => {
        const td = say(make('td', b.columns[i][0], row), cell);
        if (cells.length === 1) td.colSpan = b.columns.length;
      });
    }
    return box;
  }
  function drawBars(b) {
    const fall = make('div', 'fall');
    for (const r of b.rows) {
      const sum = r.sum ? ' sum' : '';
      make('span', sum, fall).textContent = r.name;
      const bar = make('div', 'bar k' + (r.color % 8 + 1), make('div', 'track', make('div', sum, fall)));
      place(bar, r.from, r.width);
      for (const [share, text] of r.parts || []) {
        const part = make('i', '', bar);
        part.style.width = 100 * Math.min(1, share) + '%';
        part.title = text;
      }
      const value = make('span', 'num' + sum, fall);
      value.append(r.text);
      if (r.share) value.append(' '), make('span', 'pct', value).textContent = r.share;
    }
    return fall;
  }
  function drawStack(b) {
    const box = make('div');
    make('h3', '', box).textContent = b.title;
    const stack = make('div', 'stack', box), names = make('div', 'legend', box);
    b.parts.forEach(([name, share, text], i) => {
      make('i', 'k' + (i + 1), stack).style.width = 100 * share + '%';
      const e = make('span', 'k' + (i + 1), names);
      make('i', '', e);
      say(e, [name + ' ', { b: text }]);
    });
    return box;
  }
  function drawTiles(b) {
    const tiles = make('div', 'tiles wide');
    for (const t of b.tiles) {
      const tile = make('div', 'panel tile', tiles);
      make('div', 'name', tile).textContent = t.name;
      for (const v of t.values) say(make('div', 'value' + (t.values.length > 1 ? ' two' : ''), tile), v);
      make('div', 'sub', tile).textContent = t.note;
    }
    return tiles;
  }
  function drawText(b) { return say(make('p', b.class), b.text); }
  function drawNotes(b) {
    const box = make('div', 'panel notes wide'), list = make('ul');
    say(box, b.title).append(list);
    for (const text of b.items) make('li', '', list).textContent = text;
    return box;
  }
  function drawPanel(b) {
    const fig = make('figure', 'panel' + flags(b, ['wide', 'left']));
    if (b.title.length || b.legend) {
      const caption = make('figcaption', '', fig);
      say(make('span', 'title', caption), b.title);
      if (b.legend) say(make('span', '', make('span', 'legend', caption)), b.legend);
    }
    drawAll(fig, b.blocks);
    return fig;
  }

  /* --- answers and samples ----------------------------------------------------------------------------- */

  function picture(into, p) {
    if (!p.src) { make('span', 'none', into).textContent = p.text; return; }
    const img = make('img', '', into);
    img.loading = 'lazy';
    img.decoding = 'async';
    img.alt = p.text;
    img.src = p.src;
  }
  function ownDirection(e) { e.dir = 'auto'; return e; }
  function drawQuestion(c) {
    const box = make('article', 'panel answer ' + c.class), long = text => text.length > 280 ? ' long' : '';
    if (c.pictures.length) {
      const row = make('div', 'pics', box);
      for (const p of c.pictures) picture(row, p);
    }
    const body = make('div', 'body', box);
    if (c.channel) make('p', 'channel', body).textContent = c.channel;
    ownDirection(make('p', 'q' + long(c.question), body)).textContent = c.question;
    for (const a of c.answers) {
      const row = say(make('p', 'a', body), a.mark);
      const text = ownDirection(make('span', long(a.text), row));
      if (a.text) text.textContent = a.text; else make('small', 'note', text).textContent = '(nothing)';
    }
    if (c.expected !== null)
      ownDirection(make('p', 'expected', body)).textContent = 'expected: ' + c.expected;
    if (c.earlier.rows.length) body.append(drawTable(c.earlier));
    return box;
  }
  function drawAnswers(b) {
    const box = make('div', 'wide'), pick = make('div', 'pick', box);
    pick.setAttribute('role', 'radiogroup');
    pick.setAttribute('aria-label', 'which answers');
    for (const way of ['all', 'wrong', 'right']) {
      const name = make('label', '', pick), input = make('input', '', name);
      input.type = 'radio';
      input.name = 'pick';
      input.id = 'pick-' + way;
      input.checked = way === 'all';
      name.append(way);
    }
    const questions = make('div', 'questions', box);
    for (const c of b.questions) questions.append(drawQuestion(c));
    return box;
  }
  /* The grid shows where one visual token ends and the next begins. */
  function drawTokenGrid(box, rows, columns) {
    let d = '';
    for (let i = 1; i < rows; i++) d += 'M0 ' + i + 'H' + columns;
    for (let i = 1; i < columns; i++) d += 'M' + i + ' 0V' + rows;
    shape('path', { d }, stretched(columns, rows, box));
  }
  function drawSample(b) {
    const box = make('div', 'sample');
    for (const p of b.pictures) {
      const fig = make('figure', '', box), frame = make('div', '', fig);
      picture(frame, p);
      drawTokenGrid(frame, p.rows, p.columns);
      make('figcaption', '', fig).textContent = p.text;
    }
    const text = make('p', 'tokens', box);
    for (const [kind, title, words] of b.tokens) {
      const run = make('span', kind, text);
      run.title = title;
      run.textContent = words;
    }
    return box;
  }

  /* --- several runs ------------------------------------------------------------------------------------ */

  function age(time) {
    const s = Math.max(0, Math.round(Date.now() / 1000 - time));
    const text = s < 120 ? s + ' s' : s < 7200 ? Math.round(s / 60) + ' min' : Math.round(s / 3600) + ' h';
    return 'last line ' + text + ' ago';
  }
  function drawRuns(b) {
    const box = make('div', 'runs wide');
    for (const run of b.items) {
      const tile = make('a', 'panel k' + (run.color + 1), box);
      tile.href = run.href;
      make('i', '', tile);
      make('b', '', tile).textContent = run.name;
      for (const line of run.lines) say(make('p', '', tile), line);
      if (run.time) make('small', '', tile).textContent = age(run.time);
    }
    return box;
  }

  /* --- plans ------------------------------------------------------------------------------------------- */

  function drawPlacement(b) {
    const box = make('div', 'nodes');
    b.nodes.forEach((ranks, i) => {
      const node = make('div', 'node', box);
      make('small', '', node).textContent = 'node ' + i;
      const grid = make('div', '', node);
      for (const [rank, stage, text] of ranks) {
        const e = make('i', 'k' + (stage % 8 + 1), grid);
        e.title = 'rank ' + rank;
        e.textContent = text || '·';
      }
    });
    return box;
  }
  function drawTimeline(b) {
    const box = make('div', 'time'), tall = 22 * b.stages;
    const drawing = stretched(1000, tall, box);
    drawing.style.height = tall + 'px';
    for (const [stage, chunk, micro, backward, from, to] of b.spans) {
      const cls = 'k' + (chunk % 8 + 1) + (backward ? ' back' : ''), ms = t => (1e3 * t).toFixed(2);
      const bar = shape('rect', { class: cls, x: 1000 * from / b.end, y: 22 * stage + 1,
                                  width: 1000 * (to - from) / b.end, height: 20 }, drawing);
      shape('title', {}, bar).textContent = 'stage ' + stage + ' chunk ' + chunk + ' micro-batch ' + micro +
        (backward ? ' backward' : ' forward') + (b.timed ? ', ' + ms(from) + ' to ' + ms(to) + ' ms' : '');
    }
    return box;
  }

  /* Rows of coloured pieces on one scale: [row, colour, from, to]; the first eight colours are the page's. */
  function drawLanes(b) {
    const box = make('div', 'time'), tall = 16 * b.rows.length, names = make('div', 'legend', box);
    const used = new Set(b.spans.map(s => s[1]));
    b.colors.forEach((name, i) => {
      if (!used.has(i)) return;
      const item = make('span', 'k' + (i % 8 + 1) + (i > 7 ? ' back' : ''), names);
      make('i', '', item);
      item.append(' ' + name);
    });
    const drawing = stretched(1000, tall, box), ms = t => (1e3 * t).toFixed(3);
    drawing.style.height = tall + 'px';
    for (const [row, color, from, to] of b.spans) {
      const bar = shape('rect', { class: 'k' + (color % 8 + 1) + (color > 7 ? ' back' : ''),
                                  x: 1000 * from / b.end, y: 16 * row + 1, width: 1000 * (to - from) / b.end,
                                  height: row % 4 == 3 ? 10 : 14 }, drawing);
      shape('title', {}, bar).textContent = b.rows[row] + ': ' + b.colors[color] + ', ' + ms(from) + ' to ' +
        ms(to) + ' ms';
    }
    return box;
  }

  /* --- the page ---------------------------------------------------------------------------------------- */

  const kinds = { text: drawText, tiles: drawTiles, notes: drawNotes, panel: drawPanel, table: drawTable,
                  bars: drawBars, stack: drawStack, chart: drawChart, heat: drawHeat, scale: drawScale,
                  answers: drawAnswers, sample: drawSample, placement: drawPlacement,
                  timeline: drawTimeline, lanes: drawLanes, runs: drawRuns };

  function drawAll(into, blocks) {
    for (const b of blocks) into.append(kinds[b.kind](b));
  }
  function navigate(links) {
    const brand = make('a', 'brand', links);
    brand.href = doc.served ? '/' : '#top';
    brand.textContent = 'Trebuchet';
    for (const s of doc.sections.filter(s => s.title)) {
      const a = make('a', '', links);
      a.href = '#' + s.id;
      a.textContent = s.id[0].toUpperCase() + s.id.slice(1);
    }
  }
  function drawAllSections(main) {
    const header = make('header', '', main);
    header.id = 'top';
    say(make('h1', '', header), doc.heading);
    for (const line of doc.meta) say(make('p', 'meta', header), line);
    for (const s of doc.sections) {
      const section = make('section', '', main);
      section.id = s.id;
      if (s.title) make('h2', '', section).textContent = s.title;
      drawAll(make('div', 'grid', section), s.blocks);
    }
    const made = ['Made by ', { b: doc.maker }];
    say(make('footer', '', main), made.concat(doc.footer, doc.served ? '.' : '. One file, no network.'));
  }

  const root = document.documentElement, media = matchMedia('(prefers-color-scheme: dark)');
  document.getElementById('theme').onclick = function () {
    const dark = root.dataset.theme ? root.dataset.theme === 'dark' : media.matches;
    root.dataset.theme = dark ? 'light' : 'dark';
  };
  const links = document.querySelector('.links'), main = document.querySelector('main');
  links.replaceChildren();
  main.replaceChildren();
  document.title = doc.title;
  navigate(links);
  drawAllSections(main);
}

/* Draws a page that is served, and draws it again whenever its document at `url` has changed; what a visitor
 * has opened stays open. The page waits while a value is being pointed at. */
function watchPage(url, doc) {
  const state = document.createElement('span');
  const opened = () => [...document.querySelectorAll('details')];
  let tag = '';
  state.className = 'live';
  document.getElementById('theme').before(state);

  function show(good) {
    state.textContent = good ? 'live' : 'no answer';
    state.classList.toggle('lost', !good);
  }
  function redraw(next) {
    const open = opened().map(d => d.open), top = scrollY;
    const picked = [...document.querySelectorAll('input:checked')].map(e => e.id);
    next.served = true;
    drawPage(next);
    opened().forEach((d, i) => { d.open = Boolean(open[i]); });
    for (const id of picked) if (id && document.getElementById(id)) document.getElementById(id).click();
    scrollTo(0, top);
  }
  async function look() {
    try {
      const answer = await fetch(url, { cache: 'no-store', headers: tag ? { 'If-None-Match': tag } : {} });
      if (answer.status === 200 && !document.querySelector('.tip')) {
        tag = answer.headers.get('ETag') || '';
        redraw(await answer.json());
      }
      show(answer.status === 200 || answer.status === 304);
    } catch (lost) {
      show(false);
    }
    setTimeout(look, 2000);
  }
  doc.served = true;
  drawPage(doc);
  show(true);
  setTimeout(look, 2000);
}
