// Package cluster is a Kubernetes cluster for tests: the real control plane, a real
// kubelet with containerd, kube-proxy and CoreDNS, as plain processes in namespaces of
// their own.
//
// [Main] divides a test binary into three processes. The supervisor, in the machine's
// namespaces, fetches and builds what is needed. It starts an init in new PID, mount and
// network namespaces, which starts the tests and waits for whatever loses its parent.
// When the init ends the kernel ends everything in there: processes, mounts, addresses
// and rules need no teardown of ours, whatever way a run ends. Control groups do, and the
// work folder; the supervisor removes both.
package cluster
