// Every view of the page, on a laptop and on a phone, in the light and in the dark: nothing serious for axe, nothing wider than the screen,
// and a picture of each for people.

import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { Host, assertAccessible, begin, chatShown, closeBrowser, message, openPage, say, shot, turns, written } from './harness.mjs';

/** @type {Host} */
let host;
before(async () => {
  host = await Host.start(['--demo-pace', '2ms', '--demo-slow-pace', '250ms']);
});
after(async () => {
  await closeBrowser();
  await host?.stop();
});

const LAPTOP = { viewport: { width: 1280, height: 800 } };
const PHONE = { viewport: { width: 375, height: 720 }, hasTouch: true, isMobile: true, deviceScaleFactor: 2 };
const PNG = Buffer.from('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==', 'base64');

let changes = 0;

for (const [device, screen] of Object.entries({ laptop: LAPTOP, phone: PHONE })) {
  for (const colorScheme of ['light', 'dark']) {
    test(`each view is complete on a ${device}, ${colorScheme}`, async () => {
      const isPhone = device === 'phone';
      const page = await openPage(host.ready.page, { ...screen, colorScheme });
      const look = async (name) => {
        await shot(page, `${device}-${colorScheme}-${name}`);
        await assertAccessible(page);
        await assertFits(page);
      };
      const panel = async (name) => {
        if (await page.locator('.drawer').isVisible()) return page.getByRole('tab', { name }).click();
        if (isPhone && name !== 'Changes') await page.getByRole('button', { name: 'More' }).click();
        await page.locator('.header').getByRole('button', { name }).filter({ visible: true }).click();
      };
      await page.getByRole('heading', { name: 'What shall be done?' }).waitFor();
      await look('welcome');
      if (isPhone) {
        await page.getByRole('button', { name: 'Sessions' }).click();
        await page.waitForFunction(() => document.querySelector('.sidebar').getBoundingClientRect().left === 0);
        await look('sessions');
        await page.locator('.sidebar').getByRole('button', { name: 'New session', exact: true }).click();
      } else {
        await page.getByRole('button', { name: 'New session' }).first().click();
      }
      await page.waitForFunction(() => !document.querySelector('dialog button[type=submit]').disabled);
      await look('new-session');
      await page.keyboard.press('Escape');
      if (isPhone) await page.locator('.sidebar').waitFor({ state: 'hidden' });
      await begin(page);
      await look('empty');

      await say(page, '/slow Tell me what you can do, and take your time.');
      await page.locator('.message.agent .markdown').first().waitFor();
      await say(page, 'And then the next thing, which is so long that it does not fit the width of a phone');
      await page.locator('.queue li').waitFor();
      await message(page).fill('No, wait');
      await page.locator('input[type=file]').setInputFiles({ name: 'dot.png', mimeType: 'image/png', buffer: PNG });
      await page.getByRole('img', { name: 'dot.png' }).waitFor();
      await look('streaming');
      await page.getByRole('button', { name: 'Interrupt' }).click();
      await page.locator('.turn-end').getByText('Stopped').waitFor();
      await turns(page, 2);
      // What was queued has come back.
      await written(page, 'And then the next thing, which is so long that it does not fit the width of a phone');
      await message(page).fill('');
      await look('answers');

      await say(page, '/run echo a-word-that-is-so-long-that-it-does-not-fit-the-width-of-any-phone-that-was-ever-made');
      await page.locator('.approval').waitFor();
      await look('approval');
      await page.locator('.approval').getByRole('button', { name: 'Allow' }).click();
      await turns(page, 3);
      await page.locator('.tool summary').click();
      await page.locator('.tool-part').nth(1).waitFor();
      await look('call');
      await say(page, '/tools 3');
      await page.locator('.approval').nth(2).waitFor();
      await look('approvals');
      for (let left = 2; left >= 0; left -= 1) {
        await page.locator('.approval').first().getByRole('button', { name: left === 1 ? 'Deny' : 'Allow' }).click();
        await page.waitForFunction((wanted) => document.querySelectorAll('.approval').length <= wanted, left);
      }
      await turns(page, 4);
      await say(page, '/fail');
      await turns(page, 5);
      await look('failure');

      await page.getByRole('button', { name: 'More' }).click();
      await page.locator('.popup').waitFor();
      await look('more');
      await page.keyboard.press('Escape');

      changes += 1;
      writeFileSync(join(host.workspace, 'src/main.rs'), `fn main() {\n    println!("${'two '.repeat(30)}");\n    println!("${changes}");\n}\n`);
      writeFileSync(join(host.workspace, `src/new-${changes}.rs`), '//! A new file.\n');
      await panel('Changes');
      await page.locator('.file-name', { hasText: `new-${changes}.rs` }).waitFor();
      await page.locator('.diff-line.remove').or(page.locator('.file-change:not([open])')).first().waitFor();
      await look('changes');
      await panel('Files');
      await page.locator('.entries').waitFor();
      await look('files');
      await page.getByRole('button', { name: 'README.md' }).click();
      await page.locator('.viewer-lines').getByText('Its first line.').waitFor();
      await look('file');
      await panel('Terminal');
      await page.locator('.xterm-rows').getByText(/[$#]/).first().waitFor();
      await page.keyboard.type('git log --oneline; ls\n');
      await page.locator('.xterm-rows').getByText('README.md').waitFor();
      await look('terminal');
      await panel('Wire');
      await page.getByText(/now \d+ ms/).waitFor();
      await look('wire');
      await page.getByRole('button', { name: 'Drop this connection' }).click();
      await page.locator('.banner').waitFor();
      await look('offline');
      await page.locator('.banner').waitFor({ state: 'hidden' });
      await page.getByRole('region', { name: 'Last reconnect' }).getByText('/v2').waitFor();
      await page.locator('.drawer-body').evaluate((body) => body.scrollTo(0, body.scrollHeight));
      await look('recovered');
      await page.getByRole('button', { name: 'Close the panel' }).click();

      await page.getByRole('button', { name: 'Side chat' }).last().click();
      await chatShown(page, 1);
      await say(page, '/big 5MB');
      await turns(page, 1);
      await page.locator('.tool summary').last().click();
      await look('side-chat');
      await page.getByRole('button', { name: /Show all/ }).click();
      await page.locator('.panel[data-state="done"]').waitFor();
      await look('result');
      assert.deepEqual(page.complaints, []);
      await page.context().close();

      const stranger = await openPage(host.ready.page.replace(/token=.*/, 'token=wrong'), { ...screen, colorScheme });
      await stranger.getByText('This host needs a token').waitFor();
      await shot(stranger, `${device}-${colorScheme}-token`);
      await assertAccessible(stranger);
      await assertFits(stranger);
      await stranger.context().close();
    });
  }
}

/** Fails if something reaches over the right edge of the screen, or of what it is in; but for what scrolls by itself. */
async function assertFits(page) {
  const wide = await page.evaluate(() => {
    const scrolls = (element) => ['auto', 'scroll', 'hidden'].includes(getComputedStyle(element).overflowX) && !element.matches('.drawer-body, .scroller, body, html');
    const isCut = (element) => {
      for (let holder = element.parentElement; holder; holder = holder.parentElement) if (scrolls(holder)) return true;
      return false;
    };
    return [...document.querySelectorAll('body *')]
      .filter((element) => element.checkVisibility({ visibilityProperty: true }) && !element.closest('.xterm, .visually-hidden, .skip'))
      .filter((element) => element.getBoundingClientRect().right > window.innerWidth + 0.5 && !isCut(element))
      .map((element) => `${element.tagName.toLowerCase()}.${element.className}`);
  });
  assert.deepEqual(wide, []);
}
