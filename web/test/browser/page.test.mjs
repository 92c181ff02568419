// The page in a real browser, with a host of the built program and its demo agent.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { request } from 'node:http';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { Host, TOKEN, begin, closeBrowser, message, openPage, said, say, shot, turns } from './harness.mjs';

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** A host that hurries. @type {Host} */
let host;
before(async () => {
  host = await Host.start(['--demo-pace', '2ms', '--demo-slow-pace', '25ms']);
});
after(async () => {
  await closeBrowser();
  await host?.stop();
});

/** Fails if a rule for accessibility is broken in a way that keeps people out. */
async function assertAccessible(page) {
  // The script is run by the test and not by the page, whose policy would not allow it.
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }));
  const serious = violations.filter(({ impact }) => impact === 'serious' || impact === 'critical');
  assert.deepEqual(serious.map(({ id, nodes }) => `${id}: ${nodes.map(({ target }) => target).join(' ')}`), []);
}

/** Records tasks of the page that take long; returns the longest, in milliseconds. */
async function watchTasks(page) {
  await page.evaluate(() => {
    window.longest = 0;
    new PerformanceObserver((list) => {
      for (const { duration } of list.getEntries()) window.longest = Math.max(window.longest, duration);
    }).observe({ type: 'longtask' });
  });
  return () => page.evaluate(() => Math.round(window.longest));
}

/** Compares what a page shows with what a page shows that has just come. */
async function assertComplete(page) {
  const fresh = await openPage(host.ready.page);
  await fresh.goto(page.url());
  await fresh.locator('.message').first().waitFor();
  const count = await page.locator('.turn-end').count();
  await turns(fresh, count);
  assert.deepEqual(await said(page), await said(fresh));
  await fresh.context().close();
}

test('a session begins, and the answer streams', async () => {
  const page = await openPage(host.ready.page);
  assert.ok(!page.url().includes('token'), 'the token is not in the address bar');
  await begin(page);
  await assertAccessible(page);
  await say(page, 'Hello, is anybody there?');
  await turns(page, 1);
  assert.match((await said(page)).join(), /I am the demo agent/);
  assert.equal(await page.locator('.message.user .said').innerText(), 'Hello, is anybody there?');
  await shot(page, 'answer');
  await assertAccessible(page);
  await page.reload();
  await turns(page, 1);
  await assertComplete(page);
  assert.deepEqual(page.complaints, []);
});

test('calls are allowed and denied', async () => {
  const page = await openPage(host.ready.page);
  await begin(page);
  await say(page, '/run echo allowed');
  await page.locator('.approval').waitFor();
  await shot(page, 'approval');
  await assertAccessible(page);
  await page.locator('.approval').getByRole('button', { name: 'Allow' }).click();
  await turns(page, 1);
  await page.locator('.tool summary').click();
  assert.match(await page.locator('.tool-body').innerText(), /allowed/);
  await say(page, '/run echo denied');
  await page.locator('.approval').waitFor();
  await page.locator('.approval').getByRole('button', { name: 'Deny' }).click();
  await turns(page, 2);
  assert.equal(await page.locator('.tool[data-state="failed"]').count(), 1);
  assert.deepEqual(page.complaints, []);
});

test('a connection that is dropped in the middle of an answer loses and repeats nothing', async () => {
  const page = await openPage(host.ready.page);
  await begin(page);
  await page.getByRole('button', { name: 'Wire' }).first().click();
  await say(page, `/slow ${'One cargo, many pieces. '.repeat(12)}`);
  await page.evaluate(() => {
    window.losses = 0;
    new MutationObserver(() => (window.losses += document.querySelector('.banner').hidden ? 0 : 1)).observe(document.querySelector('.banner'), { attributes: true });
  });
  for (let cut = 1; cut <= 3; cut += 1) {
    await page.waitForTimeout(300);
    await page.getByRole('button', { name: 'Drop this connection' }).click();
    await page.waitForFunction((losses) => window.losses >= losses, cut);
    if (cut === 1) await shot(page, 'offline');
    await page.locator('.banner').waitFor({ state: 'hidden' });
  }
  await turns(page, 1);
  await page.locator('.wire').getByText('Actions replayed').waitFor();
  await shot(page, 'wire');
  await assertAccessible(page);
  await assertComplete(page);
  assert.deepEqual(page.complaints, []);
});

test('a page that was frozen in the background shows all of the answer', async () => {
  const page = await openPage(host.ready.page);
  await begin(page);
  await say(page, `/slow ${'The tide does not wait. '.repeat(8)}`);
  await page.waitForTimeout(200);
  const session = await page.context().newCDPSession(page);
  await session.send('Page.setWebLifecycleState', { state: 'frozen' });
  await new Promise((resolve) => setTimeout(resolve, 700));
  await session.send('Page.setWebLifecycleState', { state: 'active' });
  await turns(page, 1);
  await assertComplete(page);
});

test('a host that is killed and started again has everything that was seen', async () => {
  const own = await Host.start(['--demo-pace', '2ms', '--demo-slow-pace', '25ms']);
  try {
    const page = await openPage(own.ready.page);
    await begin(page);
    await say(page, 'Before the crash');
    await turns(page, 1);
    await say(page, `/slow ${'Half of this is lost at sea. '.repeat(20)}`);
    await page.locator('.message.agent').nth(1).waitFor();
    const texts = () => page.locator('.message.agent .markdown').allInnerTexts();
    await page.waitForFunction(() => document.querySelectorAll('.message.agent .markdown').length > 1);
    await page.waitForTimeout(300);
    const seen = await texts();
    await own.kill();
    await page.locator('.banner').waitFor();
    await own.run();
    await page.locator('.banner').waitFor({ state: 'hidden' });
    await turns(page, 2);
    const now = await texts();
    assert.equal(now[0], seen[0]);
    assert.ok(seen[1].length > 10 && now[1].startsWith(seen[1]), `${seen[1]} / ${now[1]}`);
    await say(page, 'After the crash');
    await turns(page, 3);
    await page.context().close();
  } finally {
    await own.stop();
  }
});

test('a result of 5 MB is shown to its last line, with few elements', async (t) => {
  const page = await openPage(host.ready.page);
  await begin(page);
  const longest = await watchTasks(page);
  await say(page, '/big 5MB');
  await turns(page, 1);
  await page.locator('.tool summary').click();
  await page.getByRole('button', { name: /Show all/ }).click();
  await page.locator('.panel[data-state="done"]').waitFor();
  await page.locator('.viewer').evaluate((viewer) => viewer.scrollTo(0, viewer.scrollHeight / 2));
  await page.waitForTimeout(100);
  await page.locator('.viewer').evaluate((viewer) => viewer.scrollTo(0, viewer.scrollHeight));
  await page.waitForTimeout(100);
  const [chat, turn, call] = await page.evaluate(() => performance.getEntriesByType('resource').findLast(({ name }) => name.includes('/content/result/')).name.split('/').slice(-3));
  const whole = await (await fetch(new URL(`/content/result/${chat}/${turn}/${call}`, host.ready.page), { headers: { authorization: `Bearer ${TOKEN}` } })).text();
  assert.equal(Buffer.byteLength(whole), 5_000_000);
  const last = whole.trimEnd().split('\n').at(-1);
  assert.ok((await page.locator('.viewer-lines').textContent()).endsWith(last.slice(-30)));
  assert.ok((await page.locator('*').count()) < 600);
  await shot(page, 'result');
  t.diagnostic(`longest task with a result of 5 MB: ${await longest()} ms`);
  assert.deepEqual(page.complaints, []);
});

test('a stream of hundreds of events a second is drawn once a frame', async (t) => {
  const page = await openPage(host.ready.page);
  await begin(page);
  const longest = await watchTasks(page);
  await say(page, '/big 10'); // Warms up.
  await turns(page, 1);
  await page.evaluate(() => {
    window.draws = 0;
    new MutationObserver(() => (window.draws += 1)).observe(document.querySelector('.messages'), { subtree: true, childList: true, characterData: true });
  });
  await say(page, `${'Many words arrive, each in an event of its own. '.repeat(60)}`);
  await turns(page, 2);
  t.diagnostic(`drawn ${await page.evaluate(() => window.draws)} times; longest task: ${await longest()} ms`);
  await assertComplete(page);
});

test('a wrong token is told, and the right one can be pasted', async () => {
  const page = await openPage(host.ready.page.replace(TOKEN, 'not-the-token-of-this-host'));
  await page.getByText('This host needs a token').waitFor();
  await shot(page, 'token');
  await assertAccessible(page);
  await page.getByLabel('Address or token').fill(host.ready.page);
  await page.getByRole('button', { name: 'Connect' }).click();
  await page.getByText('What shall be done?').waitFor();
});

test('on a phone nothing is wider than the screen', async () => {
  const page = await openPage(host.ready.page, { viewport: { width: 375, height: 720 }, hasTouch: true, isMobile: true, deviceScaleFactor: 2 });
  const fits = async () => assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= window.innerWidth));
  await page.getByRole('button', { name: 'Sessions' }).click();
  await page.waitForTimeout(250);
  await shot(page, 'phone-list');
  await page.locator('.sidebar').getByRole('button', { name: 'New session', exact: true }).click();
  await shot(page, 'phone-new');
  await page.getByRole('button', { name: 'Begin' }).click();
  await say(page, '/run echo a-word-that-is-so-long-that-it-does-not-fit-the-width-of-any-phone-that-was-ever-made');
  await page.locator('.approval').waitFor();
  await fits();
  await shot(page, 'phone-approval');
  await page.locator('.approval').getByRole('button', { name: 'Allow' }).click();
  await turns(page, 1);
  await fits();
  await page.getByRole('button', { name: 'Changes' }).click();
  await page.getByText(/changed|Nothing is/).first().waitFor();
  await fits();
  await assertAccessible(page);
});

test('dark colours have enough contrast', async () => {
  const page = await openPage(host.ready.page, { colorScheme: 'dark' });
  await begin(page);
  await say(page, '/tools 2');
  await page.locator('.approval').nth(1).waitFor();
  await shot(page, 'dark');
  await assertAccessible(page);
  await page.locator('.approval').getByRole('button', { name: 'Allow' }).first().click();
  await page.locator('.approval').getByRole('button', { name: 'Deny' }).first().click();
  await turns(page, 1);
});

test('a changed file is shown as a difference, and changes again', async () => {
  const page = await openPage(host.ready.page);
  await begin(page);
  await page.getByRole('button', { name: 'Changes' }).click();
  writeFileSync(join(host.workspace, 'src/main.rs'), 'fn main() {\n    println!("two");\n}\n');
  await page.locator('.diff-line.add').waitFor();
  assert.match(await page.locator('.diff-line.remove').innerText(), /println!\("one"\)/);
  assert.match(await page.locator('.diff-line.add').innerText(), /println!\("two"\)/);
  await shot(page, 'changes');
  await assertAccessible(page);
  await page.getByRole('tab', { name: 'Files' }).click();
  await page.getByRole('button', { name: 'README.md' }).click();
  await page.locator('.viewer-lines').getByText('Its first line.').waitFor();
  await shot(page, 'files');
  assert.deepEqual(page.complaints, []);
});

test('a large file comes in segments', async () => {
  const page = await openPage(host.ready.page);
  await begin(page);
  const lines = Array.from({ length: 20_000 }, (_, at) => `This is line ${at} of a file of more than a megabyte, so that it needs segments.`);
  writeFileSync(join(host.workspace, 'large.txt'), `${lines.join('\n')}\n`);
  await page.getByRole('button', { name: 'Files' }).click();
  await page.getByRole('button', { name: 'large.txt' }).click();
  await page.locator('.viewer-lines').getByText('This is line 0 of').waitFor();
  await page.locator('.viewer').evaluate((viewer) => viewer.scrollTo(0, viewer.scrollHeight));
  await page.locator('.viewer-lines').getByText('This is line 19999 of').waitFor();
  await page.getByRole('tab', { name: 'Wire' }).click();
  await page.locator('.wire').getByText('Longest frame').waitFor();
  const frames = await page.locator('.wire tr', { hasText: '/ahp' }).locator('td').nth(1).innerText();
  assert.ok(Number(frames.replace(/\D/g, '')) > 8, `${frames} frames for 1.5 MB in frames of 256 KiB`);
  rmSync(join(host.workspace, 'large.txt'));
  assert.deepEqual(page.complaints, []);
});

test('a fork and a side chat are chats of their own', async () => {
  const page = await openPage(host.ready.page);
  await begin(page);
  await say(page, 'The first thing');
  await turns(page, 1);
  await page.getByRole('button', { name: 'Fork' }).click();
  await page.locator('.chat-tabs button').nth(1).waitFor();
  await turns(page, 1);
  await say(page, 'Said in the fork');
  await turns(page, 2);
  await page.getByRole('button', { name: 'Main' }).click();
  await turns(page, 1);
  assert.equal(await page.locator('.turn-end').count(), 1);
  await page.getByRole('button', { name: 'Side chat' }).click();
  await page.locator('.chat-tabs button').nth(2).waitFor();
  await say(page, '/recall');
  await turns(page, 1);
  assert.match((await said(page)).join(), /The first thing/);
  await shot(page, 'side-chat');
  await page.reload();
  await turns(page, 1);
  assert.match((await said(page)).join(), /The first thing/);
  assert.deepEqual(page.complaints, []);
});

test('a terminal runs a command, and is there again when its panel is', async () => {
  const page = await openPage(host.ready.page);
  await begin(page);
  await page.getByRole('button', { name: 'Terminal' }).click();
  await page.locator('.xterm-screen').waitFor();
  await page.locator('.xterm-rows').getByText(/[$#]/).first().waitFor();
  await page.keyboard.type('printf "six times seven is %d\\n" $((6*7))\n');
  await page.locator('.xterm-rows').getByText('six times seven is 42').waitFor();
  await shot(page, 'terminal');
  await page.getByRole('button', { name: 'Close the panel' }).click();
  await page.getByRole('button', { name: 'Terminal' }).click();
  await page.locator('.xterm-rows').getByText('six times seven is 42').waitFor();
  assert.deepEqual(page.complaints, []);
});

test('the keyboard is enough', async () => {
  const page = await openPage(host.ready.page);
  await page.getByRole('button', { name: 'New session' }).first().waitFor();
  const reach = async (name) => {
    for (let step = 0; step < 40; step += 1) {
      await page.keyboard.press('Tab');
      const label = await page.evaluate(() => document.activeElement?.getAttribute('aria-label') ?? document.activeElement?.textContent ?? '');
      if (label.includes(name)) return;
    }
    assert.fail(`${name} cannot be reached with the keyboard`);
  };
  await reach('New session');
  await page.keyboard.press('Enter');
  await page.getByLabel('Directory').waitFor();
  await page.waitForFunction(() => !document.querySelector('dialog button[type=submit]').disabled);
  await reach('Begin');
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => document.activeElement?.matches('textarea'));
  await page.keyboard.type('/run echo keys');
  await page.keyboard.press('Enter');
  await page.locator('.approval').waitFor();
  await page.keyboard.press('Alt+a');
  await turns(page, 1);
  await page.keyboard.press('Shift+Tab');
  assert.deepEqual(page.complaints, []);
});

test('Markdown runs nothing and fetches nothing', async () => {
  const page = await openPage(host.ready.page);
  const asked = [];
  page.on('request', (request) => asked.push(request.url()));
  await begin(page);
  const hostile = [
    '<script>window.ran = 1</script>',
    '<img src="http://127.0.0.1:9/x.png" onerror="window.ran = 2">',
    '[a link](javascript:window.ran=3)',
    '![a picture](http://127.0.0.1:9/y.png)',
    '<a href="data:text/html,x">data</a>',
    '<iframe srcdoc="<script>parent.ran=4</script>"></iframe>',
  ];
  await say(page, hostile.join('\n\n'));
  await turns(page, 1);
  assert.equal(await page.evaluate(() => window.ran), undefined);
  assert.equal(await page.locator('.messages :is(img, script, iframe, [onerror], a[href^="javascript"], a[href^="data"])').count(), 0);
  assert.deepEqual(asked.filter((url) => !url.startsWith(new URL('/', host.ready.page).href)), []);
  assert.deepEqual(page.complaints, []);
});

test('a picture is attached, shown, and sent', async () => {
  const page = await openPage(host.ready.page);
  await begin(page);
  const png = Buffer.from('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==', 'base64');
  await page.locator('input[type=file]').setInputFiles({ name: 'dot.png', mimeType: 'image/png', buffer: png });
  await page.getByRole('img', { name: 'dot.png' }).waitFor();
  await say(page, 'Look at this');
  await turns(page, 1);
  assert.match((await said(page)).join(), /1 attachments/);
  assert.equal(await page.locator('.message.user .chip').count(), 1);
});

test('prompts wait in the queue, and an interrupt gives them back', async () => {
  const page = await openPage(host.ready.page);
  await begin(page);
  await say(page, `/slow ${'A long voyage. '.repeat(30)}`);
  await page.getByRole('button', { name: 'Stop the agent' }).waitFor();
  await say(page, 'The next thing');
  await page.locator('.queue').getByText('The next thing').waitFor();
  await shot(page, 'queue');
  await page.getByRole('button', { name: 'Stop the agent' }).click();
  await page.locator('.turn-end').getByText('Stopped').waitFor();
  assert.equal(await message(page).inputValue(), 'The next thing');
});

test('the page comes in less than 100 kB, is kept, and says what it may do', async (t) => {
  const page = await openPage('');
  let bytes = 0;
  const lazy = new Set();
  const session = await page.context().newCDPSession(page);
  await session.send('Network.enable');
  // What is loaded when the page is idle is no part of its first paint.
  session.on('Network.requestWillBeSent', ({ requestId, request: { url } }) => url.includes('/lazy/') && lazy.add(requestId));
  session.on('Network.loadingFinished', ({ requestId, encodedDataLength }) => (bytes += lazy.has(requestId) ? 0 : encodedDataLength));
  const [answer] = await Promise.all([page.waitForResponse(host.ready.page.replace(/#.*/, '')), page.goto(host.ready.page)]);
  await page.getByRole('button', { name: 'New session' }).first().waitFor();
  t.diagnostic(`${bytes} bytes until the first paint, headers included`);
  assert.ok(bytes > 10_000 && bytes < 100_000, `${bytes} bytes`);
  const headers = answer.headers();
  assert.match(headers['content-security-policy'], /default-src 'none'.*frame-ancestors 'none'/);
  assert.equal(headers['x-content-type-options'], 'nosniff');
  assert.equal(headers['referrer-policy'], 'no-referrer');
});

test('a page of another origin cannot connect, even with the token', async () => {
  for (const path of ['/v2', '/ahp']) {
    const status = await new Promise((resolve, reject) => {
      const headers = { connection: 'Upgrade', upgrade: 'websocket', 'sec-websocket-version': '13', 'sec-websocket-key': 'AAAAAAAAAAAAAAAAAAAAAA==', origin: 'http://evil.example' };
      const asked = request(new URL(`${path}?token=${TOKEN}`, host.ready.page), { headers }, ({ statusCode }) => resolve(statusCode));
      asked.once('upgrade', () => resolve(101));
      asked.once('error', reject);
      asked.end();
    });
    assert.equal(status, 403, path);
  }
});
