// Package k8s tests the manifests of k8s/, the container images and the product in them on a Kubernetes cluster with real
// pods. Tests run one after the other, on one cluster: make e2e-k8s.
//
// The cluster is the real control plane, a real kubelet with containerd, kube-proxy and CoreDNS, as plain processes in
// namespaces of their own (cluster_test.go and the files beside it). The test binary is three processes: the supervisor, in
// the machine's namespaces, fetches and builds what is needed. It starts an init in new PID, mount and network namespaces,
// which starts the tests and waits for whatever loses its parent. When the init ends the kernel ends everything in there:
// processes, mounts, addresses and rules need no teardown of ours, whatever way a run ends. Control groups do, and the work
// folder; the supervisor removes both.
package k8s
