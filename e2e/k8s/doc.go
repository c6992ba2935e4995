// Package k8s tests the manifests of k8s/, the container images and the product in them on a Kubernetes cluster with real
// pods, which package cluster makes. Tests run one after the other, on one cluster: make e2e-k8s.
package k8s
