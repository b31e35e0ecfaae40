job "task-csi-short" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      csi_plugin {
        id = "p"
        type = "controller"
      }
    }
  }
}
