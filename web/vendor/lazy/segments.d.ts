export { segmented } from '../../../packages/segments/dist/segments.js';
export type { SegmentedSocket, Chunking } from '../../../packages/segments/dist/segments.js';
