// Package conformance runs one suite of cases with all clients and hosts.
//
// cases.json has the cases as data: the steps of a client and their outcomes. The Go client and the Python client,
// plain and for coroutines, run them against the tools of an index, of a Go host and of a Python host: the same
// case, the same outcome. In texts {host} is the prefix of the tools' ids, {tmp} a folder, {id} a name of the run,
// and {N} a text of N bytes; in outcomes {0..N} is the list of these numbers. Members that an expected object does
// not name are ignored.
//
// The numbers of the cases are those of the rows of the project's research (DSPex 5-…, rath 7.3-…) and of the
// protocol's sections. elsewhere.json lists every other row, with the reason why it is no case and the test that
// shows it.
package conformance
