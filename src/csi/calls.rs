//! The calls of the specification: which answer belongs to a request, and the path of the method.

use prost::Message;

use crate::wire::csi as wire;

/// A request that a plugin answers once.
pub(super) trait Call: Message {
    /// Its answer.
    type Answer: Message + Default;
    /// The method's name.
    const NAME: &'static str;
    /// Its path in gRPC.
    const PATH: &'static str;
}

macro_rules! calls {
    ($($service:literal $name:literal $request:ident $answer:ident;)*) => {
        $(impl Call for wire::$request {
            type Answer = wire::$answer;
            const NAME: &'static str = $name;
            const PATH: &'static str = concat!("/csi.v1.", $service, "/", $name);
        })*
    };
}

calls! {
    "Identity" "Probe" ProbeRequest ProbeResponse;
    "Identity" "GetPluginInfo" GetPluginInfoRequest GetPluginInfoResponse;
    "Identity" "GetPluginCapabilities" GetPluginCapabilitiesRequest GetPluginCapabilitiesResponse;
    "Controller" "ControllerGetCapabilities" ControllerGetCapabilitiesRequest ControllerGetCapabilitiesResponse;
    "Controller" "CreateVolume" CreateVolumeRequest CreateVolumeResponse;
    "Controller" "DeleteVolume" DeleteVolumeRequest DeleteVolumeResponse;
    "Controller" "ValidateVolumeCapabilities" ValidateVolumeCapabilitiesRequest ValidateVolumeCapabilitiesResponse;
    "Controller" "ControllerExpandVolume" ControllerExpandVolumeRequest ControllerExpandVolumeResponse;
    "Controller" "ControllerPublishVolume" ControllerPublishVolumeRequest ControllerPublishVolumeResponse;
    "Controller" "ControllerUnpublishVolume" ControllerUnpublishVolumeRequest ControllerUnpublishVolumeResponse;
    "Controller" "ListVolumes" ListVolumesRequest ListVolumesResponse;
    "Controller" "CreateSnapshot" CreateSnapshotRequest CreateSnapshotResponse;
    "Controller" "DeleteSnapshot" DeleteSnapshotRequest DeleteSnapshotResponse;
    "Controller" "ListSnapshots" ListSnapshotsRequest ListSnapshotsResponse;
    "Node" "NodeGetInfo" NodeGetInfoRequest NodeGetInfoResponse;
    "Node" "NodeGetCapabilities" NodeGetCapabilitiesRequest NodeGetCapabilitiesResponse;
    "Node" "NodeStageVolume" NodeStageVolumeRequest NodeStageVolumeResponse;
    "Node" "NodeUnstageVolume" NodeUnstageVolumeRequest NodeUnstageVolumeResponse;
    "Node" "NodePublishVolume" NodePublishVolumeRequest NodePublishVolumeResponse;
    "Node" "NodeUnpublishVolume" NodeUnpublishVolumeRequest NodeUnpublishVolumeResponse;
    "Node" "NodeExpandVolume" NodeExpandVolumeRequest NodeExpandVolumeResponse;
    "Node" "NodeGetVolumeStats" NodeGetVolumeStatsRequest NodeGetVolumeStatsResponse;
}
