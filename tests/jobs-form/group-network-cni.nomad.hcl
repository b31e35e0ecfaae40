job "group-network-cni" {
  group "g" {
    network {
      mode = "cni/mine"
      cni {
        args = {
          IP = "10.0.0.1"
        }
      }
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
