// Command bench measures the mesh against NATS itself, in one run.
//
// A broker, the serving sides and the caller are processes of their own that
// talk over TCP on loopback; the raw side, plain nats.go used well, is laid out
// in the same way. Each measurement is many short rounds, in each of which every
// side has its turn, so that noise of the machine meets all of them; what is
// printed is the median round, and ratios are taken within a round before their
// median is.
//
// It is a measurement, not a test: its status is 0 unless -check is given. It
// must never be imported, and never print a figure that it has not measured.
package main
