job "group-disk" {
  group "g" {
    ephemeral_disk {
      size = 500
      sticky = true
      migrate = true
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
