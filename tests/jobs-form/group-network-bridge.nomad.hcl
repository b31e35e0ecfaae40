job "group-network-bridge" {
  group "g" {
    network {
      mode = "bridge"
      hostname = "here"
      mbits = 10
      port "http" {
        to = -1
      }
      dns {
        servers = ["1.1.1.1"]
        searches = ["example"]
        options = ["ndots:2"]
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
