// Package k8s tests the manifests of k8s/, the container images and the product in them on a Kubernetes cluster
// with real pods. Tests run one after the other, on one cluster: make e2e-k8s.
//
// The cluster is the real control plane, a real kubelet with containerd, kube-proxy and CoreDNS, as plain processes
// in their own namespaces (cluster_test.go and its neighbours). The test binary is three processes. The supervisor,
// in the machine's namespaces, fetches and builds the programs. It starts an init in new PID, mount and network
// namespaces, which starts the tests and reaps orphans. When the init ends the kernel ends all processes, mounts,
// addresses and rules in there, however the run ends. The supervisor removes control groups and the work folder.
package k8s
