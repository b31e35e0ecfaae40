package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.name, VendorVersion: d.version}, nil
}

func (d *driver) GetPluginCapabilities(
	context.Context, *csi.GetPluginCapabilitiesRequest,
) (*csi.GetPluginCapabilitiesResponse, error) {
	service := func(kind csi.PluginCapability_Service_Type) *csi.PluginCapability {
		return &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: kind}}}
	}
	online := &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_ONLINE}
	answer := &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		service(csi.PluginCapability_Service_CONTROLLER_SERVICE),
		{Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: online}},
	}}
	if d.topology != "" {
		constraints := service(csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS)
		answer.Capabilities = append(answer.Capabilities, constraints)
	}
	return answer, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// authenticate refuses a request that could carry the secret, and does not. An expansion on a node may come without.
func (d *driver) authenticate(request any) error {
	key, value, wanted := strings.Cut(d.secret, "=")
	carrier, carries := request.(interface{ GetSecrets() map[string]string })
	if _, isNodeExpansion := request.(*csi.NodeExpandVolumeRequest); !wanted || !carries || isNodeExpansion {
		return nil
	}
	found, ok := carrier.GetSecrets()[key]
	if _, isHash := strings.CutPrefix(value, "sha256:"); isHash {
		found = fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(found)))
	}
	if !ok || found != value {
		return status.Errorf(codes.Unauthenticated, "the secret %q is missing or wrong", key)
	}
	return nil
}
