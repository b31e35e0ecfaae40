package main

import (
	"context"
	"slices"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	standardSize = 64 << 20
	largestSize  = 1 << 40
)

func (d *driver) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	kinds := []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_GET_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}
	if d.attach {
		kinds = append(kinds,
			csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
			csi.ControllerServiceCapability_RPC_PUBLISH_READONLY,
			csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES)
	}
	answer := &csi.ControllerGetCapabilitiesResponse{}
	for _, kind := range kinds {
		rpc := &csi.ControllerServiceCapability_RPC{Type: kind}
		answer.Capabilities = append(answer.Capabilities,
			&csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{Rpc: rpc}})
	}
	return answer, nil
}

// isBlock says what kind of access all of the capabilities want.
func isBlock(capabilities []*csi.VolumeCapability) (bool, error) {
	if len(capabilities) == 0 {
		return false, status.Error(codes.InvalidArgument, "volume_capabilities are missing")
	}
	block := false
	for number, capability := range capabilities {
		if err := checkCapability(capability); err != nil {
			return false, err
		}
		if one := capability.GetBlock() != nil; number > 0 && one != block {
			return false, status.Error(codes.InvalidArgument, "a volume is a device or a file system, not both")
		} else {
			block = one
		}
	}
	return block, nil
}

func checkCapability(capability *csi.VolumeCapability) error {
	switch {
	case capability == nil:
		return status.Error(codes.InvalidArgument, "volume_capability is missing")
	case capability.GetBlock() == nil && capability.GetMount() == nil:
		return status.Error(codes.InvalidArgument, "the access type is missing")
	case capability.GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_UNKNOWN:
		return status.Error(codes.InvalidArgument, "the access mode is missing")
	}
	return nil
}

// sizeOf is the capacity that is given for what is wanted: at least `least`.
func sizeOf(wanted *csi.CapacityRange, least int64) (int64, error) {
	required, limit := wanted.GetRequiredBytes(), wanted.GetLimitBytes()
	switch {
	case required < 0 || limit < 0 || limit > 0 && limit < required:
		return 0, status.Error(codes.InvalidArgument, "capacity_range: the limit is below what is required")
	case required > largestSize:
		return 0, status.Errorf(codes.OutOfRange, "capacity_range: more than %d bytes", int64(largestSize))
	case limit > 0 && limit < least:
		return 0, status.Errorf(codes.OutOfRange, "capacity_range: %d bytes are there already", least)
	}
	size := max(required, least)
	if size == 0 {
		size = standardSize
		if limit > 0 {
			size = min(size, limit)
		}
	}
	return size, nil
}

func (d *driver) describe(v *volume) *csi.Volume {
	answer := &csi.Volume{
		VolumeId: v.ID, CapacityBytes: v.Capacity, VolumeContext: map[string]string{"backend": v.Backend},
	}
	if v.Snapshot != "" {
		from := &csi.VolumeContentSource_SnapshotSource{SnapshotId: v.Snapshot}
		answer.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: from}}
	} else if v.Source != "" {
		from := &csi.VolumeContentSource_VolumeSource{VolumeId: v.Source}
		answer.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: from}}
	}
	if d.topology != "" {
		answer.AccessibleTopology = []*csi.Topology{{Segments: d.segments()}}
	}
	return answer
}

// isAccessible says whether this node is among those that a volume has to be accessible from.
func (d *driver) isAccessible(wanted *csi.TopologyRequirement) bool {
	if d.topology == "" || len(wanted.GetRequisite()) == 0 {
		return true
	}
	for _, one := range wanted.GetRequisite() {
		all := true
		for key, value := range one.GetSegments() {
			all = all && d.segments()[key] == value
		}
		if all {
			return true
		}
	}
	return false
}

func (d *driver) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if r.GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "name is missing")
	}
	block, err := isBlock(r.GetVolumeCapabilities())
	if err != nil {
		return nil, err
	}
	backend := r.GetParameters()["backend"]
	if backend == "" {
		if backend = "directory"; block {
			backend = "loop"
		}
	}
	if backend != "loop" && (backend != "directory" || block) {
		return nil, status.Errorf(codes.InvalidArgument, "parameters: backend %q; a device needs loop", backend)
	}
	if !d.isAccessible(r.GetAccessibilityRequirements()) {
		return nil, status.Error(codes.ResourceExhausted, "no volume can be made in that topology")
	}
	release, err := d.store.take("name " + r.GetName())
	if err != nil {
		return nil, err
	}
	defer release()
	v := &volume{ID: newID(), Name: r.GetName(), Block: block, Backend: backend}
	from, least, err := d.source(v, r.GetVolumeContentSource())
	if err != nil {
		return nil, err
	}
	if v.Capacity, err = sizeOf(r.GetCapacityRange(), least); err != nil {
		return nil, err
	}
	all, err := d.store.volumes()
	if err != nil {
		return nil, err
	}
	for _, other := range all {
		if other.Name != v.Name {
			continue
		}
		wanted := r.GetCapacityRange()
		fits := other.Capacity >= wanted.GetRequiredBytes() &&
			(wanted.GetLimitBytes() == 0 || other.Capacity <= wanted.GetLimitBytes())
		if !fits || other.Block != block || other.Backend != backend || other.Snapshot != v.Snapshot || other.Source != v.Source {
			return nil, status.Errorf(codes.AlreadyExists, "there is another volume called %q", v.Name)
		}
		return &csi.CreateVolumeResponse{Volume: d.describe(other)}, nil
	}
	if v.Seq, err = d.store.seq(); err != nil {
		return nil, err
	}
	if err := d.store.fill(v.ID, from, backend, v.Capacity); err != nil {
		return nil, err
	}
	if err := d.step(ctx, "filled"); err != nil {
		return nil, errorsOf(err, d.store.remove("volumes", v.ID))
	}
	if err := d.store.save(v); err != nil {
		return nil, err
	}
	return &csi.CreateVolumeResponse{Volume: d.describe(v)}, nil
}

// source is whose bytes a new volume gets, and how many these are.
func (d *driver) source(v *volume, wanted *csi.VolumeContentSource) (string, int64, error) {
	if wanted.GetSnapshot() != nil {
		from, err := d.store.snapshot(wanted.GetSnapshot().GetSnapshotId())
		if err != nil {
			return "", 0, err
		}
		if from.Backend != v.Backend {
			return "", 0, status.Error(codes.InvalidArgument, "the snapshot has another backend")
		}
		v.Snapshot = from.ID
		return from.ID, from.Size, nil
	}
	if wanted.GetVolume() != nil {
		from, err := d.store.volume(wanted.GetVolume().GetVolumeId())
		if err != nil {
			return "", 0, err
		}
		if from.Backend != v.Backend {
			return "", 0, status.Error(codes.InvalidArgument, "the volume has another backend")
		}
		v.Source = from.ID
		return from.ID, from.Capacity, nil
	}
	return "", 0, nil
}

func (d *driver) DeleteVolume(ctx context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	}
	v, release, err := d.taken(r.GetVolumeId())
	if status.Code(err) == codes.NotFound {
		return &csi.DeleteVolumeResponse{}, nil
	} else if err != nil {
		return nil, err
	}
	defer release()
	if len(v.Attached)+len(v.Staged)+len(v.Published) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is in use", v.ID)
	}
	return &csi.DeleteVolumeResponse{}, d.store.remove("volumes", v.ID)
}

// taken is a volume that nobody else works on until it is released.
func (d *driver) taken(id string) (*volume, func(), error) {
	release, err := d.store.take(id)
	if err != nil {
		return nil, nil, err
	}
	v, err := d.store.volume(id)
	if err != nil {
		release()
		return nil, nil, err
	}
	return v, release, nil
}

func isMultiNode(mode csi.VolumeCapability_AccessMode_Mode) bool {
	return mode == csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY ||
		mode == csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER ||
		mode == csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
}

func (d *driver) ControllerPublishVolume(
	ctx context.Context, r *csi.ControllerPublishVolumeRequest,
) (*csi.ControllerPublishVolumeResponse, error) {
	if !d.attach {
		return nil, status.Error(codes.Unimplemented, "volumes are not attached")
	}
	if r.GetVolumeId() == "" || r.GetNodeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id or node_id is missing")
	}
	if err := checkCapability(r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	v, release, err := d.taken(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer release()
	if r.GetNodeId() != d.node {
		return nil, status.Errorf(codes.NotFound, "there is no node %q", r.GetNodeId())
	}
	mode := r.GetVolumeCapability().GetAccessMode().GetMode()
	wanted := attachment{Readonly: r.GetReadonly(), Mode: int32(mode)}
	if found, ok := v.Attached[d.node]; ok && found != wanted {
		return nil, status.Error(codes.AlreadyExists, "the volume is attached in another way")
	}
	for node := range v.Attached {
		if node != d.node && !isMultiNode(mode) {
			return nil, status.Errorf(codes.FailedPrecondition, "the volume is attached to node %q", node)
		}
	}
	if full, err := d.isFull(v); err != nil {
		return nil, err
	} else if full {
		return nil, status.Errorf(codes.ResourceExhausted, "node %q has %d volumes, which is the most", d.node, d.most)
	}
	if v.Attached == nil {
		v.Attached = map[string]attachment{}
	}
	v.Attached[d.node] = wanted
	if err := d.store.save(v); err != nil {
		return nil, err
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"attached": v.ID}}, nil
}

// isFull says whether the node has as many volumes as it can, without this one.
func (d *driver) isFull(but *volume) (bool, error) {
	all, err := d.store.volumes()
	attached := 0
	for _, v := range all {
		if _, ok := v.Attached[d.node]; ok && v.ID != but.ID {
			attached++
		}
	}
	return attached >= d.most, err
}

func (d *driver) ControllerUnpublishVolume(
	ctx context.Context, r *csi.ControllerUnpublishVolumeRequest,
) (*csi.ControllerUnpublishVolumeResponse, error) {
	if !d.attach {
		return nil, status.Error(codes.Unimplemented, "volumes are not attached")
	}
	if r.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	}
	v, release, err := d.taken(r.GetVolumeId())
	if status.Code(err) == codes.NotFound {
		return &csi.ControllerUnpublishVolumeResponse{}, nil
	} else if err != nil {
		return nil, err
	}
	defer release()
	if r.GetNodeId() == "" {
		v.Attached = nil
	} else {
		delete(v.Attached, r.GetNodeId())
	}
	if len(v.Staged)+len(v.Published) > 0 {
		return nil, status.Error(codes.FailedPrecondition, "a node uses the volume still")
	}
	return &csi.ControllerUnpublishVolumeResponse{}, d.store.save(v)
}

func (d *driver) ValidateVolumeCapabilities(
	ctx context.Context, r *csi.ValidateVolumeCapabilitiesRequest,
) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if r.GetVolumeId() == "" || len(r.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "volume_id or volume_capabilities are missing")
	}
	v, err := d.store.volume(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	block, err := isBlock(r.GetVolumeCapabilities())
	if err != nil || block != v.Block {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: "the volume is of the other access type"}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.GetVolumeCapabilities(), Parameters: r.GetParameters(),
	}}, nil
}

// page cuts a list that is sorted by seq: what comes after `token`, at most `most`. A token outlives the entry that it names.
func page[T any](all []T, seq func(T) int, token string, most int32) ([]T, string, error) {
	after := 0
	if token != "" {
		var err error
		if after, err = strconv.Atoi(token); err != nil {
			return nil, "", status.Errorf(codes.Aborted, "starting_token %q is none of ours", token)
		}
	}
	if most < 0 {
		return nil, "", status.Error(codes.InvalidArgument, "max_entries is negative")
	}
	all = slices.DeleteFunc(all, func(one T) bool { return seq(one) <= after })
	if most == 0 || len(all) <= int(most) {
		return all, "", nil
	}
	return all[:most], strconv.Itoa(seq(all[most-1])), nil
}

func (v *volume) nodes() []string {
	nodes := []string{}
	for node := range v.Attached {
		nodes = append(nodes, node)
	}
	slices.Sort(nodes)
	return nodes
}

func (d *driver) ListVolumes(ctx context.Context, r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	all, err := d.store.volumes()
	if err != nil {
		return nil, err
	}
	shown, next, err := page(all, func(v *volume) int { return v.Seq }, r.GetStartingToken(), r.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	answer := &csi.ListVolumesResponse{NextToken: next}
	for _, v := range shown {
		published := &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: v.nodes()}
		answer.Entries = append(answer.Entries, &csi.ListVolumesResponse_Entry{Volume: d.describe(v), Status: published})
	}
	return answer, nil
}

func (d *driver) ControllerGetVolume(
	ctx context.Context, r *csi.ControllerGetVolumeRequest,
) (*csi.ControllerGetVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	}
	v, err := d.store.volume(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	published := &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: v.nodes()}
	return &csi.ControllerGetVolumeResponse{Volume: d.describe(v), Status: published}, nil
}

func (d *driver) GetCapacity(ctx context.Context, r *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	all, err := d.store.volumes()
	if err != nil {
		return nil, err
	}
	left := int64(largestSize)
	for _, v := range all {
		left -= v.Capacity
	}
	return &csi.GetCapacityResponse{AvailableCapacity: max(left, 0)}, nil
}

func describeSnapshot(s *snapshot) *csi.Snapshot {
	return &csi.Snapshot{
		SnapshotId: s.ID, SourceVolumeId: s.Source, SizeBytes: s.Size, CreationTime: s.Made, ReadyToUse: true,
	}
}

func (d *driver) CreateSnapshot(ctx context.Context, r *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	if r.GetName() == "" || r.GetSourceVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "name or source_volume_id is missing")
	}
	all, err := d.store.snapshots()
	if err != nil {
		return nil, err
	}
	for _, other := range all {
		if other.Name == r.GetName() && other.Source != r.GetSourceVolumeId() {
			return nil, status.Errorf(codes.AlreadyExists, "there is another snapshot called %q", other.Name)
		} else if other.Name == r.GetName() {
			return &csi.CreateSnapshotResponse{Snapshot: describeSnapshot(other)}, nil
		}
	}
	v, release, err := d.taken(r.GetSourceVolumeId())
	if err != nil {
		return nil, err
	}
	defer release()
	s := &snapshot{ID: newID(), Name: r.GetName(), Source: v.ID, Size: v.Capacity, Block: v.Block, Backend: v.Backend}
	s.Made = timestamppb.Now()
	if s.Seq, err = d.store.seq(); err != nil {
		return nil, err
	}
	if err := d.store.fill(s.ID, v.ID, v.Backend, v.Capacity); err != nil {
		return nil, err
	}
	if err := d.store.write("snapshots", s.ID, s); err != nil {
		return nil, err
	}
	return &csi.CreateSnapshotResponse{Snapshot: describeSnapshot(s)}, nil
}

func (d *driver) DeleteSnapshot(ctx context.Context, r *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	if r.GetSnapshotId() == "" {
		return nil, status.Error(codes.InvalidArgument, "snapshot_id is missing")
	}
	if !isName(r.GetSnapshotId()) {
		return &csi.DeleteSnapshotResponse{}, nil
	}
	return &csi.DeleteSnapshotResponse{}, d.store.remove("snapshots", r.GetSnapshotId())
}

func (d *driver) ListSnapshots(ctx context.Context, r *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	all, err := d.store.snapshots()
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(s *snapshot) bool {
		id, source := r.GetSnapshotId(), r.GetSourceVolumeId()
		return id != "" && s.ID != id || source != "" && s.Source != source
	})
	shown, next, err := page(all, func(s *snapshot) int { return s.Seq }, r.GetStartingToken(), r.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	answer := &csi.ListSnapshotsResponse{NextToken: next}
	for _, s := range shown {
		answer.Entries = append(answer.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: describeSnapshot(s)})
	}
	return answer, nil
}

func (d *driver) ControllerExpandVolume(
	ctx context.Context, r *csi.ControllerExpandVolumeRequest,
) (*csi.ControllerExpandVolumeResponse, error) {
	if r.GetVolumeId() == "" || r.GetCapacityRange() == nil {
		return nil, status.Error(codes.InvalidArgument, "volume_id or capacity_range is missing")
	}
	v, release, err := d.taken(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer release()
	size, err := sizeOf(r.GetCapacityRange(), v.Capacity)
	if err != nil {
		return nil, err
	}
	if v.Backend == "loop" {
		if err := grow(d.store.data(v.ID), size); err != nil {
			return nil, err
		}
	}
	v.Capacity = size
	if err := d.store.save(v); err != nil {
		return nil, err
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: size, NodeExpansionRequired: v.Backend == "loop"}, nil
}
