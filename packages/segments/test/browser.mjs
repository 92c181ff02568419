// A page in Debian's chromium that has this package, and nothing else.
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { chromium } from 'playwright-core';

/** A page with `segmented` and a client of its own in it. `end` closes it. */
export async function openPage() {
  const files = {
    '/segments.js': readFileSync(new URL('../dist/segments.js', import.meta.url)),
    '/client.mjs': readFileSync(new URL('./client.mjs', import.meta.url)),
  };
  const server = createServer(({ url }, response) => {
    response.setHeader('Content-Type', files[url] ? 'text/javascript' : 'text/html');
    response.end(files[url] ?? '<!doctype html><title>segments</title>');
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  const executablePath = process.env.BREAKBULK_CHROMIUM ?? '/usr/bin/chromium';
  const browser = await chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-dev-shm-usage'] });
  const page = await browser.newPage();
  await page.goto(`http://127.0.0.1:${server.address().port}/`);
  return {
    page,
    async end() {
      await browser.close();
      server.close();
    },
  };
}
