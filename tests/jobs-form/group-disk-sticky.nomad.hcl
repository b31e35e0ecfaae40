job "group-disk-sticky" {
  group "g" {
    ephemeral_disk {
      sticky = true
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
