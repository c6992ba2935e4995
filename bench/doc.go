// Command bench measures the mesh against NATS itself, in one run.
//
// The broker, the serving sides and the caller are processes that talk over TCP on loopback. The
// raw side, plain nats.go used well, has the same layout. A measurement is many short rounds. Each
// round runs every side, so that noise of the machine affects all. The output is the median round;
// ratios are computed within a round before their median.
//
// It is a measurement, not a test: its status is 0 whatever the figures are. It must never be
// imported, and never print a figure that it has not measured.
package main
