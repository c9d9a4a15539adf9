// Package crash runs the hawser binary as a child process on a real file system
// and does to it what happens to servers: SIGKILL under load, clean stops,
// damaged and foreign data directories, damage found while running, full disks.
// What clients were told is recorded and checked with tests/history.
//
// HAWSER_CRASH_WIDE sets how often it is killed around a large delete,
// HAWSER_CRASH_KILLS sets how often the server is killed (make crash);
// HAWSER_CRASH_SEED replays the choices of the clients, though not the timing of
// processes; HAWSER_BINARY is the server to test.
package crash
